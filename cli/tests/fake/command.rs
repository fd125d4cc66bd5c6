//! The program `vmprobe`, run to its end.

use std::path::Path;

use tokio::process::Command;

/// What a command printed, and its exit code.
pub struct Done {
    pub code: Option<i32>,
    pub output: String,
    pub errors: String,
}

impl Done {
    pub fn lines(&self) -> Vec<&str> {
        self.output.lines().collect()
    }
}

pub async fn run(program: &Path, server: &str, arguments: &[&str]) -> Done {
    let done = Command::new(program)
        .args(arguments)
        .env("VMPROBE_SERVER", server)
        .env("VMPROBE_CONFIG", "/dev/null")
        .output()
        .await
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Done {
        code: done.status.code(),
        output: text(done.stdout),
        errors: text(done.stderr),
    }
}

pub async fn vmprobe(server: &str, arguments: &[&str]) -> Done {
    run(Path::new(env!("CARGO_BIN_EXE_vmprobe")), server, arguments).await
}
