"""A real OpenID provider, npm's ``oidc-provider``, for tests of what ours cannot be trusted to get right."""
