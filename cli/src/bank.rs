//! `percolator bank`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}
pub(crate) async fn run(
    _: &str,
    _: Args,
    _: crate::output::Output,
) -> anyhow::Result<std::process::ExitCode> {
    Ok(std::process::ExitCode::SUCCESS)
}
