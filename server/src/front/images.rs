//! `ImageService`: files that clients hand over.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tonic::{Request, Response, Status, Streaming, async_trait};
use vmprobe_proto::v1;
use vmprobe_proto::v1::image_service_server::ImageService;
use vmprobe_proto::v1::upload_image_request::Part;

use crate::access::{Account, Caller, NoAccount};
use crate::blocking::blocking;
use crate::images::{Begin, Begun, ImageError, ImageStore, KeptImage};
use crate::page::Page;
use crate::status::{self, Reason};

/// The owner in a request that means all owners.
const ALL: &str = "*";

/// The service.
#[derive(Clone, Debug)]
pub struct Images {
    /// `None` if the server keeps no images.
    pub store: Option<Arc<ImageStore>>,
    /// How long an upload may wait for its next part.
    pub patience: Duration,
}

impl Images {
    fn store(&self) -> Result<Arc<ImageStore>, Status> {
        self.store
            .clone()
            .ok_or_else(|| Status::from(ImageError::None))
    }

    /// Returns the store, and the account whose images a call is about.
    fn asked<T>(&self, request: &Request<T>) -> Result<(Arc<ImageStore>, Account), Status> {
        let caller = Caller::of(request.extensions())?;
        Ok((self.store()?, caller.account))
    }

    /// Does as [`asked`](Self::asked), for the images of this owner. An empty owner is the caller.
    fn asked_of<T>(
        &self,
        request: &Request<T>,
        owner: &str,
    ) -> Result<(Arc<ImageStore>, Account), Status> {
        let caller = Caller::of(request.extensions())?;
        if owner.is_empty() {
            return Ok((self.store()?, caller.account));
        }
        let account: Account = owner
            .parse()
            .map_err(|error: NoAccount| status::invalid("owner", error.to_string()))?;
        if account != caller.account {
            check_sees_all(&caller)?;
        }
        Ok((self.store()?, account))
    }

    async fn next(
        &self,
        parts: &mut Streaming<v1::UploadImageRequest>,
    ) -> Result<Option<Part>, Status> {
        let idle = |_| Status::from(ImageError::Idle(self.patience.as_secs()));
        let message = timeout(self.patience, parts.message())
            .await
            .map_err(idle)??;
        let part =
            message.map(|message| message.part.ok_or_else(|| Status::from(ImageError::Order)));
        part.transpose()
    }
}

#[async_trait]
impl ImageService for Images {
    async fn upload_image(
        &self,
        request: Request<Streaming<v1::UploadImageRequest>>,
    ) -> Result<Response<v1::UploadImageResponse>, Status> {
        let (store, account) = self.asked(&request)?;
        let place = store.upload_place().map_err(Status::from)?;
        let mut parts = request.into_inner();
        let Some(Part::Begin(begin)) = self.next(&mut parts).await? else {
            return Err(Status::from(ImageError::Order));
        };
        let wanted = Begin {
            digest: begin
                .sha256
                .parse()
                .map_err(|error| Status::from(ImageError::Digest(error)))?,
            name: begin.name,
            size: begin.size,
        };
        let to = Arc::clone(&store);
        let begun =
            blocking(move || to.begin(&account, wanted, place).map_err(Status::from)).await?;
        let mut upload = match begun {
            Begun::There(image) => return Ok(uploaded(image)),
            Begun::Upload(upload) => upload,
        };
        while let Some(part) = self.next(&mut parts).await? {
            let write = move || {
                let written = match part {
                    Part::Chunk(bytes) => upload.write(&bytes),
                    Part::Zeros(count) => upload.write_zeros(count),
                    Part::Begin(_) => Err(ImageError::Order),
                };
                written.map(|()| upload).map_err(Status::from)
            };
            upload = blocking(write).await?;
        }
        let image = blocking(move || store.keep(*upload).map_err(Status::from)).await?;
        tracing::info!(image = %image.digest, "uploaded");
        Ok(uploaded(image))
    }

    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Result<Response<v1::ListImagesResponse>, Status> {
        let v1::ListImagesRequest {
            page_size,
            page_token,
            owner,
        } = request.get_ref().clone();
        let page: Page<String> = Page::asked(page_size, &page_token, ("images", &owner))?;
        let mut images = if owner == ALL {
            check_sees_all(&Caller::of(request.extensions())?)?;
            let store = self.store()?;
            blocking(move || Ok(store.list_all())).await?
        } else {
            let (store, account) = self.asked_of(&request, &owner)?;
            blocking(move || Ok(store.list(&account))).await?
        };
        // If several owners have the same content, it is listed once for each.
        let key = |image: &KeptImage| format!("{} {}", image.digest, image.owner);
        images.sort_by_cached_key(key);
        let is_later = |image: &KeptImage| page.after().is_none_or(|last| key(image) > *last);
        let later = images.into_iter().filter(is_later);
        let (images, next_page_token) = page.cut(later, key);
        Ok(Response::new(v1::ListImagesResponse {
            images: images.into_iter().map(described).collect(),
            next_page_token,
        }))
    }

    async fn get_image(
        &self,
        request: Request<v1::GetImageRequest>,
    ) -> Result<Response<v1::GetImageResponse>, Status> {
        let v1::GetImageRequest { image: name, owner } = request.get_ref().clone();
        let (store, account) = self.asked_of(&request, &owner)?;
        let image = blocking(move || store.find(&account, &name).map_err(Status::from)).await?;
        let image = Some(described(image));
        Ok(Response::new(v1::GetImageResponse { image }))
    }

    async fn delete_image(
        &self,
        request: Request<v1::DeleteImageRequest>,
    ) -> Result<Response<v1::DeleteImageResponse>, Status> {
        let v1::DeleteImageRequest { image: name, owner } = request.get_ref().clone();
        let (store, account) = self.asked_of(&request, &owner)?;
        blocking(move || store.delete(&account, &name).map_err(Status::from)).await?;
        Ok(Response::new(v1::DeleteImageResponse {}))
    }
}

/// # Errors
/// `PERMISSION_DENIED` if the caller hasn't control over all VMs.
fn check_sees_all(caller: &Caller) -> Result<(), Status> {
    if caller.controls_all() {
        return Ok(());
    }
    let why = format!(
        "the images of others take the role `control` over all VMs, which client `{}` hasn't",
        caller.name
    );
    Err(status::because(Reason::NotYourImages, why))
}

fn uploaded(image: KeptImage) -> Response<v1::UploadImageResponse> {
    let image = Some(described(image));
    Response::new(v1::UploadImageResponse { image })
}

fn described(image: KeptImage) -> v1::Image {
    v1::Image {
        sha256: image.digest.to_string(),
        size: image.size,
        names: image.names,
        uploaded_at: image.uploaded_at,
        vms: image.vms,
        owner: image.owner.to_string(),
    }
}
