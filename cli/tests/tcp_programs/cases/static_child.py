# Programs that the library is not in serve an accepted connection: as standard streams, and under its own number.
import ctypes

program, libc, way = sys.argv[3], ctypes.CDLL(None), sys.argv[4]
c, _ = listen().accept()
told()
echo_part(c)
number = str(c.fileno())
if way == "standard":
    ended_with = subprocess.run([program], stdin=c, stdout=c).returncode
elif way == "subprocess":
    ended_with = subprocess.run([program, number], pass_fds=[c.fileno()]).returncode
elif way == "environment":
    # With the library in the shell's file, but not in its environment.
    words = [program + ".dynamic", number]
    ended_with = subprocess.run(words, pass_fds=[c.fileno()], env={}).returncode
elif way == "spawn":
    os.set_inheritable(c.fileno(), True)
    child = os.posix_spawn(program, [program, number], os.environ)
    ended_with = os.waitpid(child, 0)[1]
elif way == "spawn_dup":
    actions = [(os.POSIX_SPAWN_DUP2, c.fileno(), 77)]
    child = os.posix_spawnp(program, [program, "77"], os.environ, file_actions=actions)
    ended_with = os.waitpid(child, 0)[1]
elif way == "system":
    os.set_inheritable(c.fileno(), True)
    ended_with = os.system(f"exec {program} {number}")
elif way == "script":
    # A shell in between has the library.
    words = ["sh", "-c", f"{program} {number}; echo $?"]
    ended_with = subprocess.run(words, pass_fds=[c.fileno()]).returncode
elif way == "fork":
    os.set_inheritable(c.fileno(), True)
    if (child := os.fork()) == 0:
        os.execv(program, [program, number])
    ended_with = os.waitpid(child, 0)[1]
else:
    # This process itself becomes the program.
    os.set_inheritable(c.fileno(), True)
    getattr(libc, way)(program.encode(), program.encode(), number.encode(), None)
print(ended_with)
