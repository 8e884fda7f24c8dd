# Children by clone(2), in namespaces of their own: their fork(3) is not the C library's.
import ctypes, platform
NUMBER = {'x86_64': 56, 'aarch64': 220}[platform.machine()]
NEW_IPC, NEW_PID, NEW_NET = 1 << 27, 1 << 29, 1 << 30

def clone(flags):
    return ctypes.CDLL(None).syscall(NUMBER, ctypes.c_ulong(flags | signal.SIGCHLD), None, None, None, None)

c, _ = listen().accept()
child = clone(NEW_IPC | NEW_PID)
if child == 0:
    told()
    names(c)
    echo_part(c)
    os._exit(0)
ended(child)
# Both have used it, so that it does not matter to the last one that it cannot reach the agent.
echo_part(c)
child = clone(NEW_NET)
if child == 0:
    echo(c)
    os._exit(0)
c.close()
ended(child)
