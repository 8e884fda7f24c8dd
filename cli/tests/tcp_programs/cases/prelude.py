# Before each case. Arguments: an address and a port, where one connection is accepted, and others of the case.
import os, signal, socket, subprocess, sys
signal.alarm(600)
address, port = sys.argv[1], int(sys.argv[2])

def listen():
    return socket.create_server((address, port))

def told():
    """The peer has sent all that it can without being read."""
    os.read(0, 1)

def echo(c):
    while data := c.recv(65536):
        c.sendall(data)

def echo_part(c):
    c.sendall(c.recv(1000, socket.MSG_WAITALL))

def names(c):
    print(c.getsockname() == (address, port), c.getpeername()[0], flush=True)

def ended(child):
    print(os.waitpid(child, 0)[1], flush=True)
