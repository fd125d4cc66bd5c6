//! Uploads of files to a server, for its VMs.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use thiserror::Error;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinError;
use tokio_stream::wrappers::ReceiverStream;
use vmprobe_proto::v1::image_service_client::ImageServiceClient;
use vmprobe_proto::v1::upload_image_request::Part;
use vmprobe_proto::v1::{
    BeginImage, DeleteImageRequest, GetImageRequest, Image, ListImagesRequest, UploadImageRequest,
};

use crate::client::{Client, PAGE};
use crate::{ClientError, connection::Connection};

/// The prefix of an image's name where a path may stand.
pub const IMAGE: &str = "image:";
/// Bytes of a file that are read and sent at once: the most that a server accepts in one part.
const CHUNK: usize = 1 << 20;
/// The most zeros that one part can stand for.
const ZEROS: u64 = 64 << 20;
/// Parts that are read ahead of the network.
const AHEAD: usize = 4;

/// Why a file wasn't uploaded.
#[derive(Debug, Error)]
pub enum PushError {
    /// The file can't be read.
    #[error("can't read {file}: {cause}")]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The server refuses the file.
    #[error("can't hand over {file}: {cause}")]
    Refused {
        /// The file.
        file: PathBuf,
        /// The server's reason.
        cause: ClientError,
    },
}

/// The progress of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushProgress {
    /// True while the file is being sent. Before that, it is read for its digest.
    pub is_sending: bool,
    /// Bytes that are done.
    pub done: u64,
    /// The file's size in bytes.
    pub size: u64,
}

/// Gets the progress of an upload, on any thread.
pub type OnProgress = Arc<dyn Fn(PushProgress) + Send + Sync>;

/// Returns an image's name in a request for a VM, by its content.
pub fn image_path(image: &Image) -> String {
    format!("{IMAGE}{}", reference(&image.sha256))
}

fn reference(sha256: &str) -> String {
    format!("sha256-{sha256}")
}

impl Client {
    /// Uploads a file to the server, unless the server has it already. `name` may be empty.
    ///
    /// # Errors
    /// The file can't be read, or the server refuses it.
    pub async fn push_image(
        &self,
        file: &Path,
        name: &str,
        on_progress: OnProgress,
    ) -> Result<Image, PushError> {
        let refused = |cause| PushError::Refused {
            file: file.to_owned(),
            cause,
        };
        let unreadable = |cause| PushError::Read {
            file: file.to_owned(),
            cause,
        };
        let (path, progress) = (file.to_owned(), Arc::clone(&on_progress));
        let hashed = tokio::task::spawn_blocking(move || hash(&path, &progress)).await;
        let (size, sha256) = flat(hashed).map_err(unreadable)?;
        let is_there = match self.get_image(&reference(&sha256)).await {
            Ok(image) if name.is_empty() || image.names.iter().any(|it| it == name) => {
                return Ok(image);
            }
            Ok(_) => true,
            Err(ClientError::NotFound(_)) => false,
            Err(cause) => return Err(refused(cause)),
        };
        let (parts, stream) = mpsc::channel(AHEAD);
        let begin = Part::Begin(BeginImage {
            name: name.to_owned(),
            size,
            sha256,
        });
        let path = file.to_owned();
        let sending = tokio::task::spawn_blocking(move || match part(&parts, begin) && !is_there {
            true => send(&path, size, &parts, &on_progress),
            // The server has the content, and the image only gets a name; or the server has ended the call.
            false => Ok(()),
        });
        let uploaded = self.upload(stream).await;
        match (flat(sending.await), uploaded) {
            (Err(cause), _) => Err(unreadable(cause)),
            (Ok(()), uploaded) => uploaded.map_err(refused),
        }
    }

    async fn upload(&self, parts: Receiver<UploadImageRequest>) -> Result<Image, ClientError> {
        let answer = self
            .images()
            .upload_image(ReceiverStream::new(parts))
            .await?;
        answer
            .into_inner()
            .image
            .ok_or(ClientError::Protocol("image"))
    }

    /// Returns all images of this client, by their digests.
    pub async fn list_images(&self) -> Result<Vec<Image>, ClientError> {
        self.list_images_of("").await
    }

    /// Returns all images of an owner, in the form of [`Image::owner`], or of all owners (`*`). To see those of others,
    /// the client needs control over all VMs.
    pub async fn list_images_of(&self, owner: &str) -> Result<Vec<Image>, ClientError> {
        let mut images = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = ListImagesRequest {
                page_size: PAGE,
                page_token,
                owner: owner.to_owned(),
            };
            let page = self.images().list_images(request).await?.into_inner();
            images.extend(page.images);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(images);
            }
        }
    }

    /// Returns one image of this client, by a name, or by `sha256-` and its digest.
    pub async fn get_image(&self, image: &str) -> Result<Image, ClientError> {
        let request = GetImageRequest {
            image: image.to_owned(),
            owner: String::new(),
        };
        let answer = self.images().get_image(request).await?;
        answer
            .into_inner()
            .image
            .ok_or(ClientError::Protocol("image"))
    }

    /// Deletes an image of this client's, with all its names.
    pub async fn delete_image(&self, image: &str) -> Result<(), ClientError> {
        self.delete_image_of(image, "").await
    }

    /// Deletes an image of an owner, in the form of [`Image::owner`]. For another owner's image, the client needs
    /// control over all VMs.
    pub async fn delete_image_of(&self, image: &str, owner: &str) -> Result<(), ClientError> {
        let (image, owner) = (image.to_owned(), owner.to_owned());
        let request = DeleteImageRequest { image, owner };
        self.images().delete_image(request).await?;
        Ok(())
    }

    fn images(&self) -> ImageServiceClient<Connection> {
        ImageServiceClient::new(self.connection())
    }
}

/// Returns the result of a thread's work.
fn flat<T>(result: Result<io::Result<T>, JoinError>) -> io::Result<T> {
    result.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Opens a regular file.
fn open(path: &Path) -> io::Result<(File, u64)> {
    // This comes before opening, as opening a FIFO would wait for a writer.
    let found = std::fs::metadata(path)?;
    if !found.is_file() {
        let error = "it isn't a regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
    }
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

/// Returns the length of a file, and its SHA-256 in hexadecimal digits.
fn hash(path: &Path, on_progress: &OnProgress) -> io::Result<(u64, String)> {
    let (mut file, size) = open(path)?;
    let mut sha256 = Sha256::new();
    let (mut done, mut buffer) = (0, vec![0; CHUNK]);
    loop {
        let len = fill(&mut file, &mut buffer)?;
        if len == 0 {
            break;
        }
        sha256.update(&buffer[..len]);
        done += len as u64;
        on_progress(PushProgress {
            is_sending: false,
            done,
            size,
        });
    }
    let mut text = String::new();
    for byte in sha256.finalize() {
        // Writing to a string never fails.
        let _ = write!(text, "{byte:02x}");
    }
    Ok((done, text))
}

/// Sends a file's content, until the call ends. Zeros are only counted.
fn send(
    path: &Path,
    size: u64,
    parts: &Sender<UploadImageRequest>,
    on_progress: &OnProgress,
) -> io::Result<()> {
    let (mut file, _) = open(path)?;
    let (mut done, mut zeros) = (0, 0);
    loop {
        let mut chunk = vec![0; CHUNK];
        let len = fill(&mut file, &mut chunk)?;
        chunk.truncate(len);
        let is_zero = len > 0 && chunk.iter().all(|byte| *byte == 0);
        if zeros > 0 && (!is_zero || zeros + len as u64 > ZEROS) {
            if !part(parts, Part::Zeros(zeros)) {
                return Ok(());
            }
            zeros = 0;
        }
        if len == 0 {
            return Ok(());
        }
        match is_zero {
            true => zeros += len as u64,
            false if !part(parts, Part::Chunk(chunk)) => return Ok(()),
            false => {}
        }
        done += len as u64;
        on_progress(PushProgress {
            is_sending: true,
            done,
            size,
        });
    }
}

/// Passes a part on to the call. Returns false if the call has ended.
fn part(parts: &Sender<UploadImageRequest>, part: Part) -> bool {
    let request = UploadImageRequest { part: Some(part) };
    parts.blocking_send(request).is_ok()
}

/// Reads until the buffer is full or the file has ended.
fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match file.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(bytes: &[u8]) -> Vec<Part> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let (sender, mut receiver) = mpsc::channel(1000);
        let size = bytes.len() as u64;
        send(
            file.path(),
            size,
            &sender,
            &(Arc::new(|_| {}) as OnProgress),
        )
        .unwrap();
        drop(sender);
        let mut parts = Vec::new();
        while let Ok(request) = receiver.try_recv() {
            parts.extend(request.part);
        }
        parts
    }

    #[test]
    fn a_file_is_sent_in_chunks_and_its_zeros_are_counted() {
        let mut bytes = vec![0; 70 * CHUNK + 5];
        bytes[CHUNK] = 1;
        bytes[70 * CHUNK] = 2;
        let sent = parts(&bytes);
        let lens: Vec<_> = sent
            .iter()
            .map(|part| match part {
                Part::Chunk(bytes) => (true, bytes.len() as u64),
                Part::Zeros(count) => (false, *count),
                Part::Begin(_) => panic!("it has begun"),
            })
            .collect();
        let chunk = CHUNK as u64;
        let expected = [
            (false, chunk),
            (true, chunk),
            (false, 64 * chunk),
            (false, 4 * chunk),
            (true, 5),
        ];
        assert_eq!(lens, expected);
        assert_eq!(parts(&[]), []);
        assert_eq!(parts(&[0, 0]), [Part::Zeros(2)]);
    }

    #[test]
    fn what_is_no_regular_file_is_not_read() {
        for path in ["/", "/dev/null", "/nowhere"] {
            let progress: OnProgress = Arc::new(|_| {});
            assert!(hash(Path::new(path), &progress).is_err(), "{path}");
        }
    }

    #[test]
    fn a_digest_is_that_of_sha256sum() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "test").unwrap();
        let (size, digest) = hash(file.path(), &(Arc::new(|_| {}) as OnProgress)).unwrap();
        assert_eq!(size, 4);
        assert_eq!(
            digest,
            "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
        );
    }
}
