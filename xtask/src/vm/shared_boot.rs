//! Checks that share one boot. Their commands run one after the other. Processes that a command leaves behind are killed, and
//! the next command starts once no scheduler is loaded.

use std::io::Write;
use std::time::Instant;

use super::kernel::Kernel;
use super::machine::Wanted;
use super::session;
use super::suite::Answer;

/// A command for the guest, and the judgement of its answer.
#[derive(Debug)]
pub struct Check {
    pub name: &'static str,
    /// Builds the needed programs, and returns the command: program and arguments.
    pub command: fn() -> Result<Vec<String>, String>,
    /// Judges an answer; the error says what is wrong.
    pub judge: fn(&Answer) -> Result<(), String>,
}

/// Runs the checks in one machine, and reports the end of each to `tell`: its name, its duration in seconds, and what was
/// wrong. If a command cannot be built, the other checks still run.
pub fn run(
    kernel: &Kernel,
    checks: &[&Check],
    mut tell: impl FnMut(&str, f64, Result<(), String>),
) {
    let (mut ready, mut commands) = (Vec::new(), Vec::new());
    for check in checks {
        let began = Instant::now();
        match (check.command)() {
            Ok(command) => {
                ready.push(*check);
                commands.push(command);
            }
            Err(why) => tell(check.name, began.elapsed().as_secs_f64(), Err(why)),
        }
    }
    if ready.is_empty() {
        return;
    }
    let (checks, began) = (&ready[..], Instant::now());
    let mut answers = Answers { checks, next: 0, began, bytes: Vec::new(), tell };
    let script = script(commands.into_iter());
    let command = ["sh", "-c", &script].map(String::from).to_vec();
    let mut errors = Vec::new();
    let wanted = Wanted { command, ..Wanted::default() };
    let outcome = session::run(kernel, &wanted, &mut answers, &mut errors);
    let errors = String::from_utf8_lossy(&errors);
    answers.fail_rest(&match outcome {
        Ok(outcome) => format!("no answer; exit code {}, errors {errors:?}", outcome.exit_code),
        Err(error) => error.to_string(),
    });
}

/// A script that runs the commands. Each answer is a line with the exit code and two lengths, then standard output and standard
/// error of these lengths.
fn script(commands: impl Iterator<Item = Vec<String>>) -> String {
    let mut script = String::from(
        r#"processes() { ls /proc | grep '^[0-9]'; }
answer() {
    code=$?
    for process in $(processes); do
        case " $theirs " in
        *" $process "*) ;;
        *) kill -9 $process 2>/dev/null ;;
        esac
    done
    until [ "$(cat /sys/kernel/sched_ext/state)" = disabled ]; do sleep 0.1; done
    # A process that is being killed may still write.
    cp /run/shared-boot.out /run/answer.out; cp /run/shared-boot.err /run/answer.err
    echo $code $(wc -c </run/answer.out) $(wc -c </run/answer.err)
    cat /run/answer.out /run/answer.err
    dmesg -C
}
theirs=$(echo $(processes))
"#,
    );
    for command in commands {
        let words: Vec<String> =
            command.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
        script.push_str(&words.join(" "));
        script.push_str(" >/run/shared-boot.out 2>/run/shared-boot.err; answer\n");
    }
    script
}

/// Parses the script's output as it comes.
struct Answers<'a, T> {
    checks: &'a [&'a Check],
    next: usize,
    began: Instant,
    bytes: Vec<u8>,
    tell: T,
}

impl<T: FnMut(&str, f64, Result<(), String>)> Answers<'_, T> {
    fn tell(&mut self, judged: impl FnOnce(&Check) -> Result<(), String>) {
        let Some(check) = self.checks.get(self.next) else { return };
        (self.tell)(check.name, self.began.elapsed().as_secs_f64(), judged(check));
        self.next += 1;
        self.began = Instant::now();
    }

    /// The first unanswered check failed; the others never started.
    fn fail_rest(&mut self, why: &str) {
        self.tell(|_| Err(why.to_owned()));
        while self.next < self.checks.len() {
            self.tell(|_| Err("not run: the shared machine had ended".to_owned()));
        }
    }
}

impl<T: FnMut(&str, f64, Result<(), String>)> Write for Answers<'_, T> {
    fn write(&mut self, piece: &[u8]) -> std::io::Result<usize> {
        self.bytes.extend_from_slice(piece);
        while let Some((answer, length)) = first_answer(&self.bytes) {
            self.bytes.drain(..length);
            self.tell(|check| (check.judge)(&answer));
        }
        Ok(piece.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The first answer in these bytes and its length, once it is complete.
fn first_answer(bytes: &[u8]) -> Option<(Answer, usize)> {
    let line = bytes.iter().position(|byte| *byte == b'\n')?;
    let numbers = std::str::from_utf8(&bytes[..line]).ok()?;
    let mut numbers = numbers.split(' ');
    let exit_code = numbers.next()?.parse().ok()?;
    let out_end = line + 1 + numbers.next()?.parse::<usize>().ok()?;
    let end = out_end + numbers.next()?.parse::<usize>().ok()?;
    let text = |range: std::ops::Range<usize>| {
        bytes.get(range).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    };
    let (out, err) = (text(line + 1..out_end)?, text(out_end..end)?);
    Some((Answer { exit_code, out, err }, end))
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    fn check(name: &'static str) -> Check {
        Check {
            name,
            command: || Ok(Vec::new()),
            judge: |answer| match answer.exit_code {
                0 => Ok(()),
                _ => Err(format!("{} {}", answer.out, answer.err)),
            },
        }
    }

    #[test]
    fn answers_are_judged_as_they_come_and_missing_ones_fail() {
        let checks = [check("a"), check("b"), check("c"), check("d")];
        let checks: Vec<&Check> = checks.iter().collect();
        let mut told = Vec::new();
        let tell = |name: &str, _: f64, result: Result<(), String>| {
            told.push(format!("{name} {result:?}"));
        };
        let mut answers =
            Answers { checks: &checks, next: 0, began: Instant::now(), bytes: Vec::new(), tell };
        for piece in ["0 3 0\no", "ut7 4 5", "\nmoreerro", "r"] {
            answers.write_all(piece.as_bytes()).unwrap();
        }
        answers.fail_rest("panic");
        assert_eq!(
            told,
            [
                "a Ok(())",
                r#"b Err("more error")"#,
                r#"c Err("panic")"#,
                r#"d Err("not run: the shared machine had ended")"#
            ]
        );
    }
}
