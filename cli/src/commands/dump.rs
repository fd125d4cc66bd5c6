//! `vmprobe dump`.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use vmprobe_client::Dump;

use super::session::{interrupted, reach};
use crate::cli::DumpArgs;
use crate::failure::Failure;
use crate::output::note;

const MIB: u64 = 1 << 20;

/// What was written.
struct Written {
    /// Bytes of the file.
    size: u64,
    /// Bytes of the file that aren't in holes.
    stored: u64,
}

pub async fn dump(dump: &DumpArgs) -> Result<(), Failure> {
    let (client, vm) = reach(&dump.target).await?;
    let refused = |cause| Failure::DumpFile {
        file: dump.output.clone(),
        cause,
    };
    let parts = client.dump(&vm).await?;
    let file = File::create(&dump.output).map_err(refused)?;
    let written = tokio::select! {
        written = write(parts, file, &dump.output) => written,
        failure = interrupted() => Err(failure),
    };
    let Written { size, stored } = written.inspect_err(|_| {
        // An incomplete dump is of no use.
        let _it_may_be_a_device = fs::remove_file(&dump.output);
    })?;
    note(format!(
        "wrote {}: {} MiB, {} MiB of them not zero",
        dump.output.display(),
        size / MIB,
        stored / MIB
    ));
    Ok(())
}

/// Writes the parts where they belong, and leaves holes between them.
async fn write(mut parts: Dump, mut file: File, path: &Path) -> Result<Written, Failure> {
    let refused = |cause: io::Error| Failure::DumpFile {
        file: path.to_owned(),
        cause,
    };
    let mut written = Written { size: 0, stored: 0 };
    while let Some(part) = parts.next().await? {
        written.size = part.size;
        written.stored += part.data.len() as u64;
        file.seek(SeekFrom::Start(part.offset)).map_err(refused)?;
        file.write_all(&part.data).map_err(refused)?;
    }
    file.set_len(written.size).map_err(refused)?;
    Ok(written)
}
