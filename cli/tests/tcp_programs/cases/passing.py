# A user gives its listener and its connection to other programs: over exec(3), to a child by vfork(2), and by SCM_RIGHTS.
def run(*words, fds):
    words = [sys.executable, sys.argv[0], address, str(port), *map(str, words)]
    return subprocess.Popen(words, pass_fds=fds)

role, number = sys.argv[3], int(sys.argv[4])
if role == 'listens':
    os.setgid(number)
    os.setuid(number)
    s = listen()
    s.set_inheritable(True)
    os.execv(sys.executable, [sys.executable, sys.argv[0], address, str(port), 'accepts', str(s.fileno())])
elif role == 'accepts':
    c, _ = socket.socket(fileno=number).accept()
    names(c)
    told()
    print(run('inherits', c.fileno(), fds=[c.fileno()]).wait(), flush=True)
    here, there = socket.socketpair()
    child = run('receives', there.fileno(), fds=[there.fileno()])
    socket.send_fds(here, [b'x'], [c.fileno()])
    c.close()
    print(child.wait())
elif role == 'inherits':
    c = socket.socket(fileno=number)
    names(c)
    echo_part(c)
else:
    c = socket.socket(fileno=socket.recv_fds(socket.socket(fileno=number), 1, 1)[1][0])
    names(c)
    echo(c)
