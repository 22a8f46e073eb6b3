//! Generates the messages and services from `proto/`, without a system `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = ["oracle.proto", "tablet.proto", "master.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        // The usual answer has none, and needn't be as large as the one that has.
        .boxed(".percolator.v1.GetOneResponse.locked")
        .compile_fds(descriptors)?;
    Ok(())
}
