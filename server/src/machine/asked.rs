//! The text of probes (arguments and filters), and how events show what was asked for.

use std::collections::HashMap;
use std::sync::Arc;

use guest_kernel::Kernel;
use guest_kernel::btf::Btf;
use guest_kernel::context::{ReschedBits, TaskContext, decode};
use guest_state::x86_64::flags::IF;
use parking_lot::RwLock;
use probe_engine::event::Event;
use probe_engine::probe::{Place as EnginePlace, ProbeId, ProbeKind, ProbeSpec};
use probe_engine::value::Taken;
use tonic::Status;
use vmprobe_arguments::{Compiled, Function, Known, Place, compile, compile_filter};
use vmprobe_proto::v1;
use vmprobe_spec::{ARGUMENTS_MAX, STACK_MAX, argument, filter};

use crate::status::ProbeField;
use crate::{convert, status};

/// What a client asks of a probe by text (arguments, a filter), and how many addresses of the stack.
#[derive(Debug, Default)]
pub struct Asked {
    arguments: Vec<Compiled>,
    filter: String,
    stack: u32,
    /// The types that the arguments use: those of the probe's module, or of the kernel.
    types: Option<Arc<Btf>>,
}

/// The [`Asked`] of all probes of a VM that have one.
#[derive(Debug)]
pub struct AskedProbes {
    kernel: Arc<Kernel>,
    bits: ReschedBits,
    probes: RwLock<HashMap<ProbeId, Arc<Asked>>>,
}

impl AskedProbes {
    /// Makes a table without probes.
    pub fn new(kernel: Arc<Kernel>) -> Self {
        Self {
            bits: ReschedBits::of(&kernel.version),
            kernel,
            probes: RwLock::default(),
        }
    }

    /// Compiles the text of a probe, and adds what it needs to `spec`, the engine's form of the probe. `module_types`
    /// returns the types of a module.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, naming the wrong field.
    pub fn compile(
        &self,
        field: ProbeField,
        asked: &v1::ProbeSpec,
        spec: &mut ProbeSpec,
        module_types: &mut dyn FnMut(&str) -> Option<Arc<Btf>>,
    ) -> Result<Asked, Status> {
        let found = self.compile_one(asked, spec, module_types);
        found.map_err(|wrong| status::invalid(format!("{field}.{}", wrong.field), wrong.why))
    }

    fn compile_one(
        &self,
        asked: &v1::ProbeSpec,
        spec: &mut ProbeSpec,
        module_types: &mut dyn FnMut(&str) -> Option<Arc<Btf>>,
    ) -> Result<Asked, Wrong> {
        let name;
        let place = match spec.kind {
            ProbeKind::Return { .. } | ProbeKind::Exits { .. } => Place::Return,
            ProbeKind::Watch { .. } => Place::Inside,
            ProbeKind::Instruction { .. } => Place::Entry,
        };
        let function = match &spec.place {
            EnginePlace::Symbol {
                module,
                name,
                offset,
            } => Function {
                name,
                module: module.as_deref().unwrap_or_default(),
                place: if *offset == 0 { place } else { Place::Inside },
            },
            EnginePlace::Address(at) => {
                let found = self.kernel.symbols.resolve(*at);
                let at_start = found.as_ref().is_some_and(|found| found.offset == 0);
                name = found.map_or_else(String::new, |found| found.symbol.name.to_owned());
                Function {
                    name: &name,
                    module: "",
                    place: if at_start { place } else { Place::Inside },
                }
            }
        };
        let types = match function.module {
            _ if asked.arguments.is_empty() => None,
            "" => None,
            module => module_types(module),
        };
        let types = types.or_else(|| self.kernel.types.clone());
        let known = Known {
            types: types.as_deref(),
            ..Known::from(&*self.kernel)
        };
        let mut arguments: Vec<Compiled> = Vec::new();
        for (index, text) in asked.arguments.iter().enumerate() {
            let field = || format!("arguments[{index}]");
            let wrong = |span: &argument::Span, why: &dyn std::fmt::Display| Wrong {
                field: field(),
                why: at_column(text, span.start, why),
            };
            let parsed =
                argument::parse(text).map_err(|error| wrong(&error.span, &error.reason))?;
            let compiled = compile(&parsed, arguments.len(), &function, &known);
            arguments.extend(compiled.map_err(|error| wrong(&error.span, &error.cause))?);
            if arguments.len() > ARGUMENTS_MAX {
                let why = format!("a probe has at most {ARGUMENTS_MAX} arguments");
                return Err(Wrong {
                    field: field(),
                    why,
                });
            }
            if let Some(twice) = twice(&arguments) {
                let why =
                    format!("`{twice}` is the name of an argument before it: give it another");
                return Err(Wrong {
                    field: field(),
                    why,
                });
            }
        }
        if !asked.filter.is_empty() {
            let wrong = |at: usize, why: &dyn std::fmt::Display| Wrong {
                field: "filter".to_owned(),
                why: at_column(&asked.filter, at, why),
            };
            let parsed = filter::parse(&asked.filter);
            let parsed = parsed.map_err(|error| wrong(error.span.start, &error.reason))?;
            let found = compile_filter(&parsed, &arguments, &self.kernel.variables);
            spec.options.filter = Some(Arc::new(
                found.map_err(|error| wrong(error.span.start, &error.cause))?,
            ));
        }
        if asked.stack > STACK_MAX {
            return Err(Wrong {
                field: "stack".to_owned(),
                why: format!(
                    "a stack has at most {STACK_MAX} addresses, not {}",
                    asked.stack
                ),
            });
        }
        spec.options.stack = asked.stack;
        let values = arguments.iter().flat_map(|argument| &argument.values);
        spec.options.values = values.cloned().collect();
        Ok(Asked {
            arguments,
            filter: asked.filter.clone(),
            stack: asked.stack,
            types,
        })
    }

    /// Remembers what registered probes are asked for. Call it while the guest stands still, so that the probes have no
    /// event before.
    pub fn remember(&self, ids: &[ProbeId], asked: &AskedOfBatch) {
        if asked.0.is_empty() {
            return;
        }
        let new = asked.0.iter();
        let new = new.filter_map(|(index, asked)| Some((*ids.get(*index)?, Arc::clone(asked))));
        self.probes.write().extend(new);
    }

    /// Forgets removed probes.
    pub fn forget(&self, ids: &[ProbeId]) {
        let mut probes = self.probes.write();
        for id in ids {
            probes.remove(id);
        }
    }

    /// Adds to the description of each probe what the probe is asked for.
    pub fn describe(&self, mut probes: Vec<v1::Probe>) -> Vec<v1::Probe> {
        let known = self.probes.read();
        for probe in &mut probes {
            if let Some(asked) = known.get(&ProbeId(probe.id)) {
                probe.arguments = asked.arguments.iter().map(Compiled::told).collect();
                probe.filter.clone_from(&asked.filter);
                probe.stack = asked.stack;
            }
        }
        probes
    }

    /// Returns the protocol's form of an event.
    pub fn event(&self, event: &Event) -> v1::Event {
        let mut told = convert::event(event);
        let context = event.context.as_deref();
        told.context = context.map(|context| self.context(context, event));
        if let Some(asked) = self.asked(event.probe) {
            let taken: Vec<Taken> = event.values.iter().collect();
            told.values = asked.values(&self.kernel, &taken);
        }
        told
    }

    /// Returns what a probe is asked for by text, or `None` if nothing.
    pub fn asked(&self, probe: ProbeId) -> Option<Arc<Asked>> {
        self.probes.read().get(&probe).cloned()
    }

    fn context(&self, context: &TaskContext, event: &Event) -> v1::Context {
        let flags = decode(context, self.bits);
        v1::Context {
            pid: context.pid,
            tgid: context.tgid,
            comm: context.name().to_vec(),
            time_ns: event.time_ns,
            interrupts_off: event.flags.is_some_and(|flags| flags & IF == 0),
            need_resched: flags.need_resched,
            in_nmi: flags.in_nmi,
            in_interrupt: flags.in_interrupt,
            in_soft_interrupt: flags.in_soft_interrupt,
            preempt_disabled: flags.preempt_disabled,
            migrate_disabled: flags.migrate_disabled,
            soft_interrupts_off: flags.soft_interrupts_off,
            preempt_need_resched: flags.preempt_need_resched,
            need_resched_lazy: flags.need_resched_lazy,
        }
    }
}

/// For each probe of a batch that is asked for something: its place in the batch and what it is asked for. Made before
/// the guest stands still.
pub struct AskedOfBatch(Vec<(usize, Arc<Asked>)>);

impl AskedOfBatch {
    /// Makes it from [`Asked`] of all probes of a batch, in their order.
    pub fn new(asked: &[Arc<Asked>]) -> Self {
        let all = asked.iter().cloned().enumerate();
        Self(all.filter(|(_, asked)| !asked.is_nothing()).collect())
    }
}

impl Asked {
    /// The arguments, in their order.
    pub fn arguments(&self) -> &[Compiled] {
        &self.arguments
    }

    fn is_nothing(&self) -> bool {
        self.arguments.is_empty() && self.filter.is_empty() && self.stack == 0
    }

    /// Returns the values of the arguments, from the fetches of a hit.
    fn values(&self, kernel: &Kernel, mut taken: &[Taken]) -> Vec<v1::Value> {
        let types = self.types.as_deref();
        let show = |argument: &Compiled| {
            let count = argument.values.len().min(taken.len());
            let (own, rest) = taken.split_at(count);
            taken = rest;
            argument.format.show(types, &kernel.symbols, own)
        };
        self.arguments.iter().map(show).collect()
    }
}

/// A wrong field of a probe.
struct Wrong {
    field: String,
    why: String,
}

/// Says what is wrong with a text, and in which column of it, from 1.
fn at_column(text: &str, at: usize, why: &dyn std::fmt::Display) -> String {
    let before = text.get(..at).unwrap_or(text);
    format!("`{text}`, column {}: {why}", before.chars().count() + 1)
}

/// Returns a name that two arguments have.
fn twice(arguments: &[Compiled]) -> Option<&str> {
    let mut seen = std::collections::HashSet::new();
    let mut names = arguments.iter().map(|argument| argument.name.as_str());
    names.find(|name| !seen.insert(*name))
}
