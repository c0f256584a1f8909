"""``python -m tests.oauth_server FD REDIRECT_URI…`` serves on the listening socket FD until it is ended."""

import socket
import sys

import uvicorn

from tests.oauth_server.accounts import Accounts, Client
from tests.oauth_server.app import make_app

if __name__ == "__main__":
    listener = socket.socket(fileno=int(sys.argv[1]))
    accounts = Accounts(Client(sys.argv[2:]))
    uvicorn.Server(uvicorn.Config(make_app(accounts), log_config=None)).run(sockets=[listener])
