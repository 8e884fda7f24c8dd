# A forked child reads for the first time when its peer has sent more than fits.
c, _ = listen().accept()
child = os.fork()
if child == 0:
    told()
    echo(c)
    os._exit(0)
c.close()
ended(child)
