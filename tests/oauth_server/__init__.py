"""A real authorization server on loopback: authlib checks client, redirect and PKCE; refresh tokens rotate."""
