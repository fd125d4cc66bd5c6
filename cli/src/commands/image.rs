//! `vmprobe image ...`, and files that are handed over for a VM.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use vmprobe_client::v1::{CreateVmRequest, Image};
use vmprobe_client::{Client, IMAGE, OnProgress, PushProgress, image_path};

use crate::cli::ImageCommand;
use crate::failure::Failure;
use crate::output::{note, print};
use crate::render;

pub async fn image(command: &ImageCommand) -> Result<(), Failure> {
    match command {
        ImageCommand::Push(push) => {
            let client = push.server.connect().await?;
            let image = self::push(&client, &push.file, &push.name).await?;
            print([match push.format.is_json() {
                true => render::image_json(&image).to_string(),
                false => format!("sha256-{}", image.sha256),
            }])
        }
        ImageCommand::List(list) => {
            let owner = match list.all {
                true => "*",
                false => &list.owner.owner,
            };
            let images = list.server.connect().await?.list_images_of(owner).await?;
            match list.format.is_json() {
                true => print(images.iter().map(|it| render::image_json(it).to_string())),
                false => print(render::image_list(&images, list.all)),
            }
        }
        ImageCommand::Remove(remove) => {
            let client = remove.server.connect().await?;
            for image in &remove.images {
                client.delete_image_of(image, &remove.owner.owner).await?;
            }
            Ok(())
        }
    }
}

/// Hands over the files of a request that are on this host, and makes the request name their
/// images.
pub async fn push_files(client: &Client, request: &mut CreateVmRequest) -> Result<(), Failure> {
    let files = [
        &mut request.kernel,
        &mut request.initramfs,
        &mut request.symbols,
    ];
    for path in files {
        push_path(client, path).await?;
    }
    for disk in request
        .devices
        .iter_mut()
        .flat_map(|devices| &mut devices.disks)
    {
        let file = disk.path.clone();
        if push_path(client, &mut disk.path).await? && !disk.read_only {
            note(format!(
                "{file} stays as it is: the guest changes a copy on the server's host, which goes with the VM"
            ));
        }
    }
    Ok(())
}

/// Hands a file over if it is on this host, and makes `path` the name of its image. Returns true if
/// it did.
async fn push_path(client: &Client, path: &mut String) -> Result<bool, Failure> {
    let is_here = !path.starts_with(IMAGE) && Path::new(path).is_file();
    if is_here {
        *path = image_path(&push(client, Path::new(path), "").await?);
    }
    Ok(is_here)
}

async fn push(client: &Client, file: &Path, name: &str) -> Result<Image, Failure> {
    let bar = bar(file);
    let on_progress: OnProgress = match bar.clone() {
        Some(bar) => Arc::new(move |progress| show(&bar, progress)),
        None => Arc::new(|_| {}),
    };
    let pushed = client.push_image(file, name, on_progress).await;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(pushed?)
}

/// Makes a bar; none where standard error is no terminal.
fn bar(file: &Path) -> Option<ProgressBar> {
    if !io::stderr().is_terminal() {
        return None;
    }
    let bar = ProgressBar::no_length();
    let template = "{prefix} {msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let name = file.file_name().unwrap_or(file.as_os_str());
    bar.set_prefix(name.to_string_lossy().into_owned());
    Some(bar)
}

fn show(bar: &ProgressBar, progress: PushProgress) {
    bar.set_message(match progress.is_sending {
        true => "is sent",
        false => "is read",
    });
    bar.set_length(progress.size);
    bar.set_position(progress.done);
}
