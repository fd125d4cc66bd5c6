//! Networks of the jobs of `vmprobe ci`.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::thread;

use tempfile::TempDir;

use super::ci::make_root;
use super::guest::files;
use super::net::{listen, tap};
use super::passt;
use super::root::unpack_modules;
use super::streams::joined;
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_job_of_ci_fetches_a_file_of_the_host_s_through_a_tap",
        ids: &["VM05", "VM12"],
        needs: Needs::Linux,
        run: |cx| fetch(cx, false),
    },
    Test {
        name: "a_job_of_ci_fetches_a_file_of_the_host_s_by_passt",
        ids: &["VM05", "VM12"],
        needs: Needs::Linux,
        run: |cx| passt::with_passt(cx, |cx| fetch(cx, true)),
    },
];

/// The host's address, and the guest's.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 119, 6, 1);
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 119, 6, 2);
/// Lines of the file.
const LINES: u32 = 5000;

/// Answers one request of HTTP/1.0 with this text. Returns the request's first line.
fn serve(listener: &TcpListener, text: &str) -> io::Result<String> {
    let (mut stream, _) = listener.accept()?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let len = text.len();
    write!(
        stream,
        "HTTP/1.0 200 OK\r\nContent-Length: {len}\r\n\r\n{text}"
    )?;
    Ok(request)
}

fn fetch(cx: &Context, by_passt: bool) -> TestResult {
    // With passt, the guest connects to addresses that the host's processes can connect to. This is an address of the
    // host's.
    let tap = match tap("ci", HOST)? {
        Ok(tap) => tap,
        Err(skipped) => return Ok(skipped),
    };
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let at = folder.path();
    let text: String = (0..LINES)
        .map(|line| format!("line {line} of the host's\n"))
        .collect();
    let made = make_root(cx, &at.join("root"))
        .and_then(|()| fs::write(at.join("root/etc/expected"), &text))
        .and_then(|()| unpack_modules(cx, "6.12.", &at.join("modules")));
    made.map_err(Failure::io("make a root folder"))?;

    let (listener, address) = listen(HOST)?;
    let server = thread::spawn(move || serve(&listener, &text));
    let job = format!(
        "busybox ip address add {GUEST}/24 dev eth0 && busybox ip link set eth0 up && \
         busybox wget -q -O /tmp/got http://{address}/file && busybox cmp /tmp/got /etc/expected && echo the same"
    );
    let network = match by_passt {
        true => "passt".to_owned(),
        false => format!("tap={}", tap.name()),
    };
    let mut command = Command::new(cx.program("vmprobe"));
    command
        .args(["ci", "--kernel", &cx.kernel(files::BZIMAGE_6_12)])
        .arg("--root")
        .arg(at.join("root"))
        .arg("--modules")
        .arg(at.join("modules"))
        .args(["--memory", "256", "--net", &network, "--run", &job])
        .stdin(Stdio::null());
    if by_passt {
        passt::prepare(cx, &mut command);
    }
    let output = command.output().map_err(Failure::io("run vmprobe ci"))?;
    let told = String::from_utf8_lossy(&output.stdout);
    check_eq!(output.status.code(), Some(0), "exit code: {told}");
    check!(told.lines().any(|line| line == "the same"), "{told}");
    let request = joined(server, "the host's server")?;
    check!(
        request.starts_with("GET /file "),
        "the request is {request:?}"
    );
    pass_with(String::new())
}
