"""002 §4.2."""


async def add(ctx, input):
    a, b = input["a"], input["b"]
    if not isinstance(a, int | float) or not isinstance(b, int | float):
        raise TypeError("a와 b는 숫자여야 합니다.")
    return {"result": a + b, "expression": f"{a} + {b} = {a + b}"}


async def multiply(ctx, input):
    a, b = input["a"], input["b"]
    return {"result": a * b, "expression": f"{a} × {b} = {a * b}"}


handlers = {"calc.add": add, "calc.multiply": multiply}
