# A parent reads after the fork, and its child goes on where it has stopped.
c, _ = listen().accept()
here, there = os.pipe()
child = os.fork()
if child == 0:
    c.sendall(os.read(here, 1000))
    echo(c)
    os._exit(0)
os.write(there, c.recv(1000, socket.MSG_WAITALL))
c.close()
ended(child)
