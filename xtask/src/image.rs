//! `cargo xtask image`: the image that the Dockerfile describes, as an OCI archive, without a container engine.

use std::path::{Path, PathBuf};

use crate::{context::Context, kube::oci, platform::Platform, programs, sbom};

/// The arguments of `cargo xtask image`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask image && cargo xtask kube load target/percolator.tar
  docker load -i target/percolator.tar          where there is a container engine
  cargo xtask image --platform linux/amd64,linux/arm64
                                                one image for machines of both kinds
Beside the archive lies percolator.spdx.json, the bill of materials of its programs (SPDX 2.3).")]
pub(crate) struct Args {
    /// The image's name and tag.
    #[arg(long, value_name = "NAME:TAG", default_value = concat!("localhost/percolator:", env!("CARGO_PKG_VERSION")))]
    name: String,
    /// The archive. Default: percolator.tar in the target folder.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// A folder with the programs, of one platform. Default: they are built for release.
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// What machines the image is for: linux/amd64, linux/arm64, or both. Default: this machine's. Programs for others are built with
    /// Debian's cross compilers.
    #[arg(long, value_name = "PLATFORM,..", value_delimiter = ',')]
    platform: Vec<Platform>,
}

/// The programs in the image.
pub(crate) const PROGRAMS: [&str; 2] = ["percolator", "percolator-operator"];
/// Each server by its name: `percolator` has all of them, and is the one that it is called.
pub(crate) const SERVERS: [&str; 4] = [
    "percolator-tso",
    "percolator-tablet",
    "percolator-master",
    "percolator-proxy",
];
/// The labels of the image; the Dockerfile has the same.
pub(crate) const LABELS: [(&str, &str); 7] = [
    ("title", "Percolator"),
    (
        "description",
        "Distributed transactions on Kubernetes: operator, servers and command.",
    ),
    ("version", env!("CARGO_PKG_VERSION")),
    ("licenses", "Apache-2.0"),
    ("source", "https://github.com/percolator-dev/percolator"),
    (
        "documentation",
        "https://github.com/percolator-dev/percolator/tree/main/docs",
    ),
    ("vendor", "The Percolator authors"),
];
const FOLDER: &str = "/usr/local/bin";
/// What an image built for release may have, uncompressed: nodes pull it before they serve. It has two Kubernetes clients: the
/// operator's, and the one by which oracles reach their register, 7 MB with TLS.
const RELEASE_BYTES_MAX: u64 = 45_000_000;

pub(crate) fn run(context: &Context, args: &Args) -> anyhow::Result<()> {
    let platforms = match &args.platform[..] {
        [] => vec![Platform::native()?],
        platforms => platforms.to_vec(),
    };
    anyhow::ensure!(
        args.programs.is_none() || platforms.len() == 1,
        "--programs has those of one platform: give one --platform"
    );
    let target = &context.metadata()?.target;
    let archive = args
        .output
        .clone()
        .unwrap_or_else(|| target.join("percolator.tar"));
    let mut images = Vec::new();
    for platform in &platforms {
        let built = match &args.programs {
            Some(folder) => folder.clone(),
            None => programs::build_for(context, *platform)?,
        };
        images.push(image(context, *platform, &built, &args.name)?);
    }
    let sizes = oci::write(&images, &archive)?;
    let bill = archive.with_extension("spdx.json");
    sbom::write(context, &args.name, &bill)?;
    println!("{}: what the programs are made of", bill.display());
    for (platform, bytes) in platforms.iter().zip(sizes) {
        println!(
            "{} as {} for {platform}: {:.1} MB",
            archive.display(),
            args.name,
            bytes as f64 / 1e6
        );
        anyhow::ensure!(
            args.programs.is_some() || bytes <= RELEASE_BYTES_MAX,
            "the image is larger than {} MB: find out what has grown, with `size` and `cargo bloat`, or raise \
             RELEASE_BYTES_MAX and say why",
            RELEASE_BYTES_MAX / 1_000_000
        );
    }
    Ok(())
}

/// Makes an archive of the image of programs that are built for this machine; gives the image's size in bytes.
pub(crate) fn make(
    context: &Context,
    built: &Path,
    name: &str,
    archive: &Path,
) -> anyhow::Result<u64> {
    image(context, Platform::native()?, built, name)?.write(archive)
}

/// The image of programs that are built.
fn image(
    context: &Context,
    platform: Platform,
    built: &Path,
    name: &str,
) -> anyhow::Result<oci::Image> {
    let mut image = oci::Image::of(platform, name, &format!("{FOLDER}/{}", PROGRAMS[0]))?;
    image.volume("/data")?;
    for program in PROGRAMS {
        let file = built.join(program);
        image.program(&file, &format!("{FOLDER}/{program}"))?;
        image.libraries_of(&file)?;
    }
    for (key, value) in LABELS {
        image.label(key, value);
    }
    if let Some(revision) = programs::revision(context.root()) {
        image.label("revision", &revision);
    }
    image.certificates()?;
    for server in SERVERS {
        image.link(&format!("{FOLDER}/{server}"), PROGRAMS[0])?;
    }
    Ok(image)
}
