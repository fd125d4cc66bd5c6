//! The host's ends of connections with a guest, of TCP or by Unix sockets.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::{self, JoinHandle};

use seeded_random::Random;

use crate::test::{Failure, wrong};

/// The most bytes that a connection from the host carries each way; some carry all of them, the others few.
const MOST: u64 = 600_000;
const FEW: u64 = 3000;

/// A connection.
pub trait Stream: Read + Write + Send + Sized + 'static {
    /// Another handle of it.
    fn try_clone(&self) -> io::Result<Self>;

    /// Ends this side's direction.
    fn end_writing(&self) -> io::Result<()>;
}

/// A listener for connections from the guest.
pub trait Listener {
    /// The type of the connections.
    type Stream: Stream;

    /// Accepts the next one.
    fn accept(&self) -> io::Result<Self::Stream>;
}

impl Stream for TcpStream {
    fn try_clone(&self) -> io::Result<Self> {
        Self::try_clone(self)
    }

    fn end_writing(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Stream for UnixStream {
    fn try_clone(&self) -> io::Result<Self> {
        Self::try_clone(self)
    }

    fn end_writing(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    fn accept(&self) -> io::Result<TcpStream> {
        Ok(Self::accept(self)?.0)
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    fn accept(&self) -> io::Result<UnixStream> {
        Ok(Self::accept(self)?.0)
    }
}

/// Echoes the bytes of `count` connections. Returns how many bytes that was.
pub fn serve(listener: &impl Listener, count: u32) -> io::Result<u64> {
    let served: Vec<JoinHandle<io::Result<u64>>> = (0..count)
        .map(|_| {
            let mut stream = listener.accept()?;
            Ok(thread::spawn(move || {
                let mut back = stream.try_clone()?;
                let count = io::copy(&mut stream, &mut back)?;
                back.end_writing()?;
                Ok(count)
            }))
        })
        .collect::<io::Result<_>>()?;
    let mut all = 0;
    for thread in served {
        all += thread.join().unwrap_or_else(|_| Err(panicked()))?;
    }
    Ok(all)
}

/// Makes `count` connections to the guest, each of which must echo what was sent. One in `long_one_in` carries the most
/// bytes. Returns how many bytes that was.
pub fn send<S: Stream>(
    connect: impl Fn() -> io::Result<S>,
    count: u32,
    long_one_in: u64,
    mut random: Random,
) -> io::Result<u64> {
    let mut all = 0;
    for _ in 0..count {
        let len = match random.once_in(long_one_in) {
            true => MOST,
            false => random.below(FEW),
        };
        let mut bytes = vec![0; len as usize];
        random.fill(&mut bytes);
        let mut stream = connect()?;
        let mut back = Vec::new();
        let mut writing = stream.try_clone()?;
        thread::scope(|scope| {
            let written = scope.spawn(|| {
                writing.write_all(&bytes)?;
                writing.end_writing()
            });
            let read = stream.read_to_end(&mut back);
            let written = written.join();
            written.unwrap_or_else(|_| Err(panicked()))?;
            read
        })?;
        if back != bytes {
            return Err(io::Error::other("other bytes came back"));
        }
        all += len;
    }
    Ok(all)
}

/// Returns the result of a thread that served or sent.
pub fn joined<T>(thread: JoinHandle<io::Result<T>>, what: &str) -> Result<T, Failure> {
    let result = thread.join();
    let result = result.map_err(|_| wrong!("{what}: a thread panicked"))?;
    result.map_err(|error| wrong!("{what}: {error}"))
}

fn panicked() -> io::Error {
    io::Error::other("a thread panicked")
}
