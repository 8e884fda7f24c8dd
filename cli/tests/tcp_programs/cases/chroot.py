# The child of a process that has no access to the agent's socket any more.
c, _ = listen().accept()
child = os.fork()
if child == 0:
    os.makedirs('empty', exist_ok=True)
    os.chroot('empty')
    os.chdir('/')
    last = os.fork()
    if last == 0:
        told()
        names(c)
        echo(c)
        os._exit(0)
    c.close()
    ended(last)
    os._exit(0)
c.close()
ended(child)
