//! `ImageService`: files that clients hand over.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tonic::{Request, Response, Status, Streaming, async_trait};
use vmprobe_proto::v1;
use vmprobe_proto::v1::image_service_server::ImageService;
use vmprobe_proto::v1::upload_image_request::Part;

use crate::access::{Account, Caller};
use crate::blocking::blocking;
use crate::images::{Begin, Begun, ImageError, ImageStore, KeptImage};
use crate::page::Page;

/// The service.
#[derive(Clone, Debug)]
pub struct Images {
    /// None where the server keeps none.
    pub store: Option<Arc<ImageStore>>,
    /// How long an upload may take for its next part.
    pub patience: Duration,
}

impl Images {
    fn store(&self) -> Result<Arc<ImageStore>, Status> {
        self.store
            .clone()
            .ok_or_else(|| Status::from(ImageError::None))
    }

    /// Whose images a call is about, and the store.
    fn asked<T>(&self, request: &Request<T>) -> Result<(Arc<ImageStore>, Account), Status> {
        let caller = Caller::of(request.extensions())?;
        Ok((self.store()?, caller.account))
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
        let (store, account) = self.asked(&request)?;
        let v1::ListImagesRequest {
            page_size,
            page_token,
        } = request.into_inner();
        let page: Page<String> = Page::asked(page_size, &page_token, "images")?;
        let images = blocking(move || Ok(store.list(&account))).await?;
        let is_later = |image: &KeptImage| {
            let after = page.after();
            after.is_none_or(|last| image.digest.to_string() > *last)
        };
        let later = images.into_iter().filter(is_later);
        let (images, next_page_token) = page.cut(later, |image| image.digest.to_string());
        Ok(Response::new(v1::ListImagesResponse {
            images: images.into_iter().map(described).collect(),
            next_page_token,
        }))
    }

    async fn get_image(
        &self,
        request: Request<v1::GetImageRequest>,
    ) -> Result<Response<v1::GetImageResponse>, Status> {
        let (store, account) = self.asked(&request)?;
        let name = request.into_inner().image;
        let image = blocking(move || store.find(&account, &name).map_err(Status::from)).await?;
        let image = Some(described(image));
        Ok(Response::new(v1::GetImageResponse { image }))
    }

    async fn delete_image(
        &self,
        request: Request<v1::DeleteImageRequest>,
    ) -> Result<Response<v1::DeleteImageResponse>, Status> {
        let (store, account) = self.asked(&request)?;
        let name = request.into_inner().image;
        blocking(move || store.delete(&account, &name).map_err(Status::from)).await?;
        Ok(Response::new(v1::DeleteImageResponse {}))
    }
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
    }
}
