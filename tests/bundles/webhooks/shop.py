async def connect(ctx):
    async def handle(request):
        ctx.verify(request, "stripe")
        order = request.json()
        accepted = await ctx.emit(
            {
                "id": order["id"],
                "name": "order",
                "message": {"type": "text", "text": order["id"]},
                "instanceKey": f"customer:{order['customer']}",
            }
        )
        return {"call": accepted.call_id}

    await ctx.http(handle)
