"""A real authorization server on loopback: authlib checks client, redirect, PKCE and scopes; refresh tokens rotate."""
