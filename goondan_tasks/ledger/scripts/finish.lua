-- Store a call's result if the claim is still ours, free the claim and tell everybody who waits.
-- KEYS, ARGV and what is returned: see finishing.lua, which stands before this.
return finish_call()
