//! The guide shows this crate's files verbatim, and reflection lists the whole service.

use std::path::Path;

use prost::Message;
use prost_types::FileDescriptorSet;

use super::*;

#[test]
fn the_guide_shows_each_file_verbatim() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = std::fs::read_to_string(folder.join("../rpc.md")).unwrap();
    for (file, language) in
        [("build.rs", "rust"), ("proto/greeter.proto", "proto"), ("src/greeter.rs", "rust")]
    {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        let block = format!("```{language}\n{text}```");
        assert!(guide.contains(&block), "{file} is not in rpc.md verbatim");
    }
}

/// A regression: the agent listed the service, but grpcurl could not call it.
#[test]
fn generated_methods_have_their_descriptors() {
    let methods = greeter_methods(Service);
    let set = FileDescriptorSet::decode(&methods.service().descriptors[..]).unwrap();
    let file = set.file.iter().find(|file| file.package() == "hello").expect("the service's file");
    assert_eq!((file.service[0].name(), file.message_type.len()), ("Greeter", 2));
    // Services that were compiled together share one copy of their descriptors.
    let both = greeter_methods(Service).and(greeter_methods(Service));
    assert_eq!(both.service().descriptors, methods.service().descriptors);
}
