//! A process that the kernel may end because of a fault in the kernel.

use std::fs;
use std::io;

use serde_json::{Value, json};

use super::klog::News;
use super::sys;
use crate::plan::Plan;

/// Has a process read the file `at`, or write `FILE=TEXT`. Reports the signal that ended it, if one did, and the new
/// lines of the kernel's log.
pub fn run(plan: &Plan) -> io::Result<Value> {
    let news = News::from_now_on()?;
    let child = sys::fork(|| {
        let done = match plan.at.split_once('=') {
            Some((file, text)) => fs::write(file, text),
            None => fs::read(&plan.at).map(drop),
        };
        u8::from(done.is_err())
    })?;
    let status = sys::wait(child)?;
    let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
    Ok(json!({ "signal": signal, "log": news.lines()? }))
}
