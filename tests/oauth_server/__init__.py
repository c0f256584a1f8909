"""A real authorization server on loopback: authlib checks client, redirect and PKCE; tokens rotate."""
