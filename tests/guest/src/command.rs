//! The commands of this program when it isn't PID 1: small ones, for guests that run one.

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::process;

/// The first argument of such a command.
pub const COMMAND: &str = "command";

/// Does what the arguments say. Returns the exit code.
pub fn run(arguments: &[String]) -> io::Result<u8> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *arguments {
        // Copies its input to its output, and reports the number of bytes on standard error.
        ["copy"] => {
            let copied = io::copy(&mut io::stdin(), &mut io::stdout())?;
            writeln!(io::stderr(), "{copied} bytes")?;
            Ok(0)
        }
        // Reports its user, its folder and a variable of its environment.
        ["who", variable] => {
            let value = env::var(variable).unwrap_or_default();
            let folder = env::current_dir()?;
            // SAFETY: it can't fail and touches no memory.
            let user = unsafe { libc::getuid() };
            let folder = folder.display();
            writeln!(io::stdout(), "user {user} in {folder} with {value:?}")?;
            Ok(0)
        }
        // Adds a line to a file and prints the file.
        ["add", path, line] => {
            let mut text = fs::read_to_string(path).unwrap_or_default();
            text.push_str(line);
            fs::write(path, format!("{text}\n"))?;
            io::stdout().write_all(&fs::read(path)?)?;
            Ok(0)
        }
        // Ends with an exit code, with unflushed output.
        ["exit", code] => {
            io::stdout().write_all(b"no line feed")?;
            io::stdout().flush()?;
            code.parse().map_err(io::Error::other)
        }
        // Ends by a signal, and leaves a process behind that holds its output open.
        ["abort"] => {
            process::Command::new("/proc/self/exe")
                .args([COMMAND, "wait"])
                .spawn()?;
            process::abort()
        }
        // Waits for the end of an input that never ends.
        ["wait"] => loop {
            let mut byte = [0];
            if io::stdin().read(&mut byte)? == 0 {
                std::thread::park();
            }
        },
        // Ends the guest.
        ["panic"] => {
            fs::write("/proc/sysrq-trigger", "c")?;
            Ok(0)
        }
        _ => Err(io::Error::other(format!("{arguments:?} is no command"))),
    }
}
