//! What the lab's host side and its PID 1 agree on: the task that PID 1 is given and the frames it
//! sends back. The program itself is in `main.rs`.

mod frame;
mod task;

pub use frame::{Decoder, Exit, Frame, FrameError, MAX_PAYLOAD};
pub use task::{Module, RESULTS_PATH, Task, TaskError};

/// The serial port that carries the frames. The kernel's console is the other one, `/dev/ttyS0`.
pub const REPORT_PORT: &str = "/dev/ttyS1";
