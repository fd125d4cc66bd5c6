//! Arguments of what cloud-init finds in the guest.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "cloud-init")]
pub struct CloudInitArgs {
    /// A folder with what cloud-init sets the guest's system up by: user-data, meta-data, network-config, vendor-data
    ///
    /// The guest gets those of these files that are there as a disk that it can't change, behind its other disks: a
    /// seed of cloud-init's data source `NoCloud`. Without meta-data the instance is called by what the other files
    /// say, so that cloud-init sets the system up once, and again when they have changed.
    #[arg(
        long,
        value_name = "FOLDER",
        conflicts_with_all = ["user_data", "meta_data", "network_config"]
    )]
    pub cloud_init: Option<PathBuf>,
    /// The file user-data alone, such as one that begins with "#cloud-config"
    #[arg(long, value_name = "FILE")]
    pub user_data: Option<PathBuf>,
    /// meta-data, beside --user-data
    #[arg(long, value_name = "FILE", requires = "user_data")]
    pub meta_data: Option<PathBuf>,
    /// network-config, beside --user-data
    #[arg(long, value_name = "FILE", requires = "user_data")]
    pub network_config: Option<PathBuf>,
}
