//! `grpc.reflection.v1` and `v1alpha`, which the front answers from its own descriptors and the host's. The two differ in name only.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use prost::Message;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
};
use wave_rpc::status::{Code, Status};

use crate::methods::Methods;

/// Paths of the only method, in both versions.
pub const PATHS: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];
/// How deep messages may be nested in messages.
const DEPTH_MAX: usize = 32;
/// Most bytes of the names in an index. Each name repeats those of its package and of the messages around it.
const NAMES_BYTES_MAX: usize = 16 << 20;

/// `ServerReflectionRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    /// Host name, returned unchanged.
    #[prost(string, tag = "1")]
    pub host: String,
    #[prost(oneof = "Question", tags = "3, 4, 5, 6, 7")]
    pub question: Option<Question>,
}

/// The question of a [`Request`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Question {
    /// The file with this name.
    #[prost(string, tag = "3")]
    File(String),
    /// The file that defines this symbol.
    #[prost(string, tag = "4")]
    Symbol(String),
    /// The file that defines this extension.
    #[prost(message, tag = "5")]
    Extension(Extension),
    /// The numbers of all extensions of this type.
    #[prost(string, tag = "6")]
    Extensions(String),
    /// All services. The text is ignored.
    #[prost(string, tag = "7")]
    Services(String),
}

/// The message `ExtensionRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct Extension {
    /// The type that is extended.
    #[prost(string, tag = "1")]
    pub of: String,
    /// The extension's number.
    #[prost(int32, tag = "2")]
    pub number: i32,
}

/// `ServerReflectionResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct Response {
    /// The host of the request.
    #[prost(string, tag = "1")]
    pub valid_host: String,
    #[prost(message, optional, tag = "2")]
    pub original_request: Option<Request>,
    #[prost(oneof = "Answer", tags = "4, 5, 6, 7")]
    pub answer: Option<Answer>,
}

/// The answer of a [`Response`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Answer {
    #[prost(message, tag = "4")]
    Files(FilesAnswer),
    /// Numbers of a type's extensions.
    #[prost(message, tag = "5")]
    Numbers(NumbersAnswer),
    #[prost(message, tag = "6")]
    Services(ServicesAnswer),
    /// The question cannot be answered.
    #[prost(message, tag = "7")]
    Error(ErrorAnswer),
}

/// `FileDescriptorResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct FilesAnswer {
    /// Serialized descriptors.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub files: Vec<Bytes>,
}

/// `ExtensionNumberResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct NumbersAnswer {
    /// Full name of the extended type.
    #[prost(string, tag = "1")]
    pub of: String,
    #[prost(int32, repeated, tag = "2")]
    pub numbers: Vec<i32>,
}

/// The message `ListServiceResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct ServicesAnswer {
    #[prost(message, repeated, tag = "1")]
    pub services: Vec<ServiceName>,
}

/// The message `ServiceResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct ServiceName {
    /// Name of the service with its package.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// The message `ErrorResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct ErrorAnswer {
    /// A gRPC status code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The error in words.
    #[prost(string, tag = "2")]
    pub text: String,
}

/// A set of files, each as the host sent it: fields that prost does not know are kept.
#[derive(Clone, PartialEq, Message)]
struct FileSet {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    files: Vec<Bytes>,
}

/// Descriptors by what they define.
#[derive(Debug, Default)]
pub struct Files {
    files: Vec<Bytes>,
    /// Files that each file imports.
    imports: Vec<Vec<usize>>,
    by_name: HashMap<String, usize>,
    by_symbol: HashMap<String, usize>,
    by_extension: BTreeMap<(String, i32), usize>,
    services: BTreeSet<String>,
    /// Bytes of the names above.
    names_bytes: usize,
}

impl Files {
    /// Indexes serialized `FileDescriptorSet`s; the last set wins if several have the same name. Hosts are not
    /// trusted: a malformed set shows nothing, and names beyond [`NAMES_BYTES_MAX`] are left out.
    pub fn new(sets: &[&[u8]]) -> Files {
        let mut files = Files::default();
        let mut imports = Vec::new();
        let sets = sets.iter().filter_map(|descriptors| FileSet::decode(*descriptors).ok());
        for bytes in sets.flat_map(|set| set.files) {
            if let Ok(file) = FileDescriptorProto::decode(bytes.clone()) {
                files.add(&file);
                files.files.push(bytes);
                imports.push(file.dependency);
            }
        }
        for names in imports {
            let mut known = Vec::new();
            for name in names {
                if let Some(&file) = files.by_name.get(&name)
                    && files.take_room(size_of::<usize>())
                {
                    known.push(file);
                }
            }
            files.imports.push(known);
        }
        files
    }

    /// A file, then the files that it imports, the files that those import, and so on: each once, as far as they are known.
    fn with_imports(&self, file: usize) -> Vec<Bytes> {
        let (mut all, mut seen) = (vec![file], BTreeSet::from([file]));
        let mut at = 0;
        while let Some(&file) = all.get(at) {
            all.extend(self.imports[file].iter().filter(|import| seen.insert(**import)));
            at += 1;
        }
        all.into_iter().map(|file| self.files[file].clone()).collect()
    }

    fn add(&mut self, file: &FileDescriptorProto) {
        let at = self.files.len();
        let package = file.package();
        if self.take_room(file.name().len()) {
            self.by_name.insert(file.name().to_owned(), at);
        }
        for message in &file.message_type {
            self.add_message(package, message, at, 0);
        }
        for kind in &file.enum_type {
            self.add_enum(package, kind, at);
        }
        for field in &file.extension {
            self.add_extension(package, field, at);
        }
        for service in &file.service {
            // As a symbol and as a service.
            if !self.take_room(2 * (package.len() + 1 + service.name().len())) {
                continue;
            }
            let name = join(package, service.name());
            for method in &service.method {
                self.add_symbol(&name, method.name(), at);
            }
            self.by_symbol.insert(name.clone(), at);
            self.services.insert(name);
        }
    }

    /// Whether names of `bytes` more bytes have room, which they then take.
    fn take_room(&mut self, bytes: usize) -> bool {
        let sum = self.names_bytes + bytes;
        let has_room = sum <= NAMES_BYTES_MAX;
        if has_room {
            self.names_bytes = sum;
        }
        has_room
    }

    fn add_symbol(&mut self, scope: &str, name: &str, at: usize) {
        if self.take_room(scope.len() + 1 + name.len()) {
            self.by_symbol.insert(join(scope, name), at);
        }
    }

    fn add_message(&mut self, scope: &str, message: &DescriptorProto, at: usize, depth: usize) {
        if !self.take_room(scope.len() + 1 + message.name().len()) {
            return;
        }
        let name = join(scope, message.name());
        let oneofs = message.oneof_decl.iter().map(|oneof| oneof.name());
        for part in message.field.iter().map(|field| field.name()).chain(oneofs) {
            self.add_symbol(&name, part, at);
        }
        for kind in &message.enum_type {
            self.add_enum(&name, kind, at);
        }
        for field in &message.extension {
            self.add_extension(&name, field, at);
        }
        if depth < DEPTH_MAX {
            for nested in &message.nested_type {
                self.add_message(&name, nested, at, depth + 1);
            }
        }
        self.by_symbol.insert(name, at);
    }

    fn add_enum(&mut self, scope: &str, kind: &EnumDescriptorProto, at: usize) {
        // An enum's values belong to the enclosing scope, not to the enum.
        for value in &kind.value {
            self.add_symbol(scope, value.name(), at);
        }
        self.add_symbol(scope, kind.name(), at);
    }

    fn add_extension(&mut self, scope: &str, field: &FieldDescriptorProto, at: usize) {
        self.add_symbol(scope, field.name(), at);
        let of = field.extendee().trim_start_matches('.');
        if self.take_room(of.len()) {
            self.by_extension.insert((of.to_owned(), field.number()), at);
        }
    }

    fn answer(&self, question: &Question) -> Option<Answer> {
        let file = match question {
            Question::File(name) => self.by_name.get(name),
            Question::Symbol(name) => self.by_symbol.get(name.trim_start_matches('.')),
            Question::Extension(Extension { of, number }) => {
                self.by_extension.get(&(of.trim_start_matches('.').to_owned(), *number))
            }
            Question::Extensions(of) => {
                let own = of.trim_start_matches('.').to_owned();
                let all =
                    self.by_extension.range((own.clone(), i32::MIN)..=(own.clone(), i32::MAX));
                let numbers: Vec<_> = all.map(|((_, number), _)| *number).collect();
                let is_known = !numbers.is_empty() || self.by_symbol.contains_key(&own);
                return is_known
                    .then(|| Answer::Numbers(NumbersAnswer { of: of.clone(), numbers }));
            }
            Question::Services(_) => return None,
        };
        let files = self.with_imports(*file?);
        Some(Answer::Files(FilesAnswer { files }))
    }
}

fn join(scope: &str, name: &str) -> String {
    if scope.is_empty() { name.to_owned() } else { format!("{scope}.{name}") }
}

/// Answers one message of the stream.
pub fn answer(message: &[u8], methods: Option<&Methods>) -> Result<Bytes, Status> {
    let request = Request::decode(message).map_err(|error| {
        Status::new(Code::InvalidArgument, format!("no ServerReflectionRequest: {error}"))
    })?;
    let error = |code: Code, text: &str| ErrorAnswer { code: code as i32, text: text.to_owned() };
    let answer = match (&request.question, methods) {
        (None, _) => Answer::Error(error(Code::InvalidArgument, "nothing was asked")),
        (_, None) => Answer::Error(error(Code::Unavailable, "no host has said yet what it serves")),
        (Some(Question::Services(_)), Some(methods)) => {
            let services: BTreeSet<_> =
                methods.services().union(&methods.files().services).collect();
            let services =
                services.into_iter().map(|name| ServiceName { name: name.clone() }).collect();
            Answer::Services(ServicesAnswer { services })
        }
        (Some(question), Some(methods)) => methods
            .files()
            .answer(question)
            .unwrap_or_else(|| Answer::Error(error(Code::NotFound, "no descriptor has it"))),
    };
    let valid_host = request.host.clone();
    let response = Response { valid_host, original_request: Some(request), answer: Some(answer) };
    Ok(response.encode_to_vec().into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost_types::{
        EnumValueDescriptorProto, FileDescriptorSet, MethodDescriptorProto, ServiceDescriptorProto,
    };
    use wave_rpc::service::{Method, Service};

    use super::*;

    fn methods() -> Methods {
        let name = |name: &str| Some(name.to_owned());
        let inner = DescriptorProto { name: name("Inner"), ..Default::default() };
        let key = FieldDescriptorProto { name: name("key"), ..Default::default() };
        let get = MethodDescriptorProto { name: name("Get"), ..Default::default() };
        let extension = FieldDescriptorProto {
            name: name("more"),
            number: Some(100),
            extendee: name(".kv.Request"),
            ..Default::default()
        };
        let file = FileDescriptorProto {
            name: name("kv.proto"),
            package: name("kv"),
            message_type: vec![DescriptorProto {
                name: name("Request"),
                field: vec![key],
                nested_type: vec![inner],
                ..Default::default()
            }],
            service: vec![ServiceDescriptorProto {
                name: name("Store"),
                method: vec![get],
                ..Default::default()
            }],
            extension: vec![extension],
            ..Default::default()
        };
        let descriptors = FileDescriptorSet { file: vec![file] }.encode_to_vec();
        let method = Method { path: "/kv.Store/Get".into(), ..Method::default() };
        Methods::new(Service { methods: vec![method], descriptors })
    }

    fn ask(question: Question) -> Answer {
        let request = Request { host: "h".into(), question: Some(question) };
        let answer = answer(&request.encode_to_vec(), Some(&methods())).unwrap();
        let response = Response::decode(answer).unwrap();
        assert_eq!(response.original_request, Some(request));
        response.answer.unwrap()
    }

    #[test]
    fn every_symbol_and_extension_leads_to_its_file() {
        let symbols = [
            "kv.Request",
            "kv.Request.Inner",
            "kv.Request.key",
            "kv.Store",
            "kv.Store.Get",
            "kv.more",
        ];
        let extension = Extension { of: "kv.Request".into(), number: 100 };
        let questions = symbols.map(|symbol| Question::Symbol(symbol.into()));
        let others = [Question::File("kv.proto".into()), Question::Extension(extension)];
        for question in questions.into_iter().chain(others) {
            let Answer::Files(FilesAnswer { files }) = ask(question.clone()) else {
                panic!("{question:?}")
            };
            assert_eq!(FileDescriptorProto::decode(files[0].clone()).unwrap().name(), "kv.proto");
        }
    }

    #[test]
    fn services_and_extensions_are_listed_and_the_rest_is_not_found() {
        let Answer::Services(all) = ask(Question::Services("*".into())) else { panic!() };
        let own = [
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
            "kv.Store",
            "xds.service.orca.v3.OpenRcaService",
        ];
        assert_eq!(all.services.iter().map(|service| &service.name[..]).collect::<Vec<_>>(), own);
        let Answer::Numbers(all) = ask(Question::Extensions("kv.Request".into())) else { panic!() };
        assert_eq!(all.numbers, [100]);
        for question in [Question::Symbol("kv".into()), Question::Extensions("kv.No".into())] {
            let Answer::Error(error) = ask(question) else { panic!() };
            assert_eq!(error.code, Code::NotFound as i32);
        }
    }

    /// Names of the files in an answer.
    fn names(answer: Option<Answer>) -> Vec<String> {
        let Some(Answer::Files(FilesAnswer { files })) = answer else { panic!("{answer:?}") };
        let files = files.into_iter().map(|file| FileDescriptorProto::decode(file).unwrap());
        files.map(|file| file.name().to_owned()).collect()
    }

    #[test]
    fn file_comes_with_the_files_that_it_imports() {
        let file = |name: &str, imports: &[&str]| FileDescriptorProto {
            name: Some(name.into()),
            dependency: imports.iter().map(|&import| import.into()).collect(),
            ..Default::default()
        };
        // `b` and `c` import each other, and `missing` is not in the set.
        let file = vec![
            file("a", &["b", "c", "missing"]),
            file("b", &["c"]),
            file("c", &["b", "d", "c"]),
            file("d", &[]),
            file("e", &["a"]),
        ];
        let files = Files::new(&[&FileDescriptorSet { file }.encode_to_vec()]);
        for (name, all) in [
            ("a", &["a", "b", "c", "d"][..]),
            ("b", &["b", "c", "d"]),
            ("d", &["d"]),
            ("e", &["e", "a", "b", "c", "d"]),
        ] {
            assert_eq!(names(files.answer(&Question::File(name.into()))), all);
        }
    }

    #[test]
    fn services_of_the_front_have_descriptors() {
        let methods = methods();
        for (service, all) in [
            ("grpc.health.v1.Health", &["grpc/health/v1/health.proto"][..]),
            ("grpc.reflection.v1.ServerReflection", &["grpc/reflection/v1/reflection.proto"]),
            (
                "grpc.reflection.v1alpha.ServerReflection",
                &["grpc/reflection/v1alpha/reflection.proto"],
            ),
            (
                "xds.service.orca.v3.OpenRcaService",
                &[
                    "xds/service/orca/v3/orca.proto",
                    "google/protobuf/duration.proto",
                    "xds/data/orca/v3/orca_load_report.proto",
                ],
            ),
        ] {
            assert_eq!(names(methods.files().answer(&Question::Symbol(service.into()))), all);
        }
    }

    /// A package's name is in each of its symbols: without a bound, 2 MiB of descriptors could become 100 GB of names.
    #[test]
    fn index_of_long_names_is_bounded() {
        let named = |name: &str| Some(name.to_owned());
        let value = |number| EnumValueDescriptorProto {
            name: Some(format!("V{number}")),
            ..Default::default()
        };
        let kind = EnumDescriptorProto {
            name: named("Kind"),
            value: (0..10_000).map(value).collect(),
            ..Default::default()
        };
        let long = FileDescriptorProto {
            name: named("long.proto"),
            package: Some("p".repeat(1 << 20)),
            enum_type: vec![kind],
            ..Default::default()
        };
        let small = FileDescriptorProto { name: named("small.proto"), ..Default::default() };
        let files = Files::new(&[&FileDescriptorSet { file: vec![long, small] }.encode_to_vec()]);
        let bytes: usize = files.by_symbol.keys().map(String::len).sum();
        assert!((1 << 20..=NAMES_BYTES_MAX).contains(&bytes), "{bytes}");
        assert!(files.answer(&Question::File("small.proto".into())).is_some());
    }

    proptest! {
        #[test]
        fn any_request_about_any_descriptors_is_answered(
            bytes in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let _ = Files::new(&[&bytes]);
            let _ = answer(&bytes, Some(&methods()));
        }
    }
}
