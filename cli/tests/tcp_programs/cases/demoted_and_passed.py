# A connection that a child has made a standard stream goes to another program by SCM_RIGHTS.
if sys.argv[3] == 'accepts':
    c, _ = listen().accept()
    child = os.fork()
    if child == 0:
        os.dup2(c.fileno(), 0)
        os._exit(0)
    ended(child)
    here, there = socket.socketpair()
    words = [sys.executable, sys.argv[0], address, str(port), 'receives', str(there.fileno())]
    child = subprocess.Popen(words, pass_fds=[there.fileno()])
    socket.send_fds(here, [b'x'], [c.fileno()])
    c.close()
    print(child.wait())
else:
    c = socket.socket(fileno=socket.recv_fds(socket.socket(fileno=int(sys.argv[4])), 1, 1)[1][0])
    names(c)
    echo(c)
