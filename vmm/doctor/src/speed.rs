//! How fast guests run and leave guest mode.

use std::time::{Duration, Instant};

use crate::{
    error::GuestError,
    guest::{Guest, GuestExit, Runner},
    int3,
    report::{Int3Shape, Speed},
    setup::CODE,
};

/// A measurement counts when it took this long.
const LONG_ENOUGH: Duration = Duration::from_millis(20);
const AIM: Duration = Duration::from_millis(40);

pub(crate) fn examine(runner: &Runner, shape: Int3Shape) -> Speed {
    // dec rcx; jnz back; hlt
    let kernel = runner.run(&[0x48, 0xff, 0xc9, 0x75, 0xfb, 0xf4], |guest| {
        measure(1_000, |count| loop_of(guest, count))
    });
    // out 0x10, al; jmp back
    let port = runner.run(&[0xe6, 0x10, 0xeb, 0xfc], |guest| {
        measure(100, |count| exits(guest, count))
    });
    // int3; jmp back
    let int3 = match shape {
        Int3Shape::DebugExit | Int3Shape::InternalError => {
            Some(runner.run(&[0xcc, 0xeb, 0xfd], |guest| {
                int3::catch_breakpoints(guest, 0)?;
                measure(100, |count| breakpoints(guest, count))
            }))
        }
        Int3Shape::ToGuest | Int3Shape::Hangs | Int3Shape::Other => None,
    };
    let nanoseconds = |seconds: Option<f64>| seconds.map(|s| s * 1e9);
    Speed {
        // Two instructions a round.
        kernel_instructions_per_second: kernel.ok().flatten().map(|seconds| 2.0 / seconds),
        port_exit_ns: nanoseconds(port.ok().flatten()),
        int3_ns: nanoseconds(int3.and_then(Result::ok).flatten()),
    }
}

/// Seconds a round, by asking `run` for more and more rounds until they take
/// long enough. None when `run` says that the guest didn't do them.
fn measure(
    mut count: u32,
    mut run: impl FnMut(u32) -> Result<bool, GuestError>,
) -> Result<Option<f64>, GuestError> {
    loop {
        let start = Instant::now();
        if !run(count)? {
            return Ok(None);
        }
        let took = start.elapsed();
        if took >= LONG_ENOUGH || count == u32::MAX {
            return Ok(Some(took.as_secs_f64() / f64::from(count)));
        }
        count = next_count(count, took);
    }
}

/// How many rounds take about [`AIM`], when `count` of them took less than
/// [`LONG_ENOUGH`]; grows by steps, as a first round is slower than the rest.
fn next_count(count: u32, took: Duration) -> u32 {
    let factor = AIM.as_nanos() / took.as_nanos().max(1);
    count.saturating_mul(factor.clamp(2, 50) as u32)
}

fn loop_of(guest: &mut Guest, count: u32) -> Result<bool, GuestError> {
    let mut registers = guest.registers()?;
    registers.rip = CODE;
    registers.rcx = count.into();
    guest.set_registers(&registers)?;
    Ok(guest.run()? == GuestExit::Halted)
}

fn exits(guest: &mut Guest, count: u32) -> Result<bool, GuestError> {
    for _ in 0..count {
        if guest.run()? != GuestExit::Port(0x10) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn breakpoints(guest: &mut Guest, count: u32) -> Result<bool, GuestError> {
    for _ in 0..count {
        if !matches!(
            guest.run()?,
            GuestExit::Debug { .. } | GuestExit::InternalError { .. }
        ) {
            return Ok(false);
        }
        let mut registers = guest.registers()?;
        if registers.rip != CODE {
            return Ok(false);
        }
        registers.rip += 1;
        guest.set_registers(&registers)?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_rounds_are_asked_for_in_steps_of_bounded_size() {
        for (count, took, next) in [
            (1_000, Duration::from_millis(10), 4_000),
            (1_000, Duration::from_millis(19), 2_000),
            (1_000, Duration::ZERO, 50_000),
            (u32::MAX, Duration::ZERO, u32::MAX),
        ] {
            assert_eq!(next_count(count, took), next);
        }
    }

    #[test]
    fn a_guest_that_does_not_do_its_rounds_has_no_speed() {
        assert!(matches!(measure(1, |_| Ok(false)), Ok(None)));
    }
}
