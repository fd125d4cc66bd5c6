//! Small BTF sections for tests.

/// Types being put together; each call gives the new type's number.
#[derive(Debug)]
pub struct Builder {
    types: Vec<u8>,
    names: Vec<u8>,
    count: u32,
    /// Bytes of the kernel's names, if these are a module's types.
    names_before: u32,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            types: vec![],
            names: vec![0],
            count: 0,
            names_before: 0,
        }
    }
}

impl Builder {
    /// Begins without types.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins the types of a module whose kernel has the types of `kernel`.
    pub fn of_module(kernel: &Self) -> Self {
        Self {
            types: vec![],
            names: vec![],
            count: kernel.count,
            names_before: kernel.names.len() as u32,
        }
    }

    fn name(&mut self, name: &str) -> u32 {
        if name.is_empty() {
            return 0;
        }
        let at = self.names_before + self.names.len() as u32;
        self.names.extend(name.bytes().chain([0]));
        at
    }

    /// Adds a type of any kind: its name, its kind, how many details it has, its size or the type it is made of, and
    /// the details (`include/uapi/linux/btf.h`).
    pub fn record(
        &mut self,
        name: &str,
        kind: u32,
        count: usize,
        size_or_type: u32,
        details: &[u32],
    ) -> u32 {
        let name = self.name(name);
        for word in [name, kind << 24 | count as u32, size_or_type] {
            self.types.extend(word.to_le_bytes());
        }
        self.types
            .extend(details.iter().flat_map(|word| word.to_le_bytes()));
        self.count += 1;
        self.count
    }

    /// Adds an integer of `size` bytes.
    pub fn int(&mut self, name: &str, size: u32) -> u32 {
        self.record(name, 1, 0, size, &[size * 8])
    }

    /// Adds an integer of `size` bytes with a sign.
    pub fn signed(&mut self, name: &str, size: u32) -> u32 {
        self.record(name, 1, 0, size, &[(1 << 24) | (size * 8)])
    }

    /// Adds `_Bool`.
    pub fn boolean(&mut self) -> u32 {
        self.record("_Bool", 1, 0, 1, &[(4 << 24) | 8])
    }

    /// Adds a type that can't be changed (`const`).
    pub fn constant(&mut self, of: u32) -> u32 {
        self.record("", 10, 0, of, &[])
    }

    /// Adds a structure of which only the name is known.
    pub fn forward(&mut self, name: &str) -> u32 {
        self.record(name, 7, 0, 0, &[])
    }

    /// Adds a pointer to a type.
    pub fn pointer(&mut self, to: u32) -> u32 {
        self.record("", 2, 0, to, &[])
    }

    /// Adds an array of a type.
    pub fn array(&mut self, of: u32, count: u32) -> u32 {
        self.record("", 3, 0, 0, &[of, 1, count])
    }

    /// Adds another name of a type.
    pub fn typedef(&mut self, name: &str, to: u32) -> u32 {
        self.record(name, 8, 0, to, &[])
    }

    /// Adds a structure. Members: name, type, offset in bytes.
    pub fn structure(&mut self, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        self.composite(name, 4, size, members)
    }

    /// Adds a union. Members: name, type, offset in bytes.
    pub fn union(&mut self, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        self.composite(name, 5, size, members)
    }

    fn composite(&mut self, name: &str, kind: u32, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        let mut details = vec![];
        for (name, id, offset) in members {
            details.extend([self.name(name), *id, offset * 8]);
        }
        self.record(name, kind, members.len(), size, &details)
    }

    /// Adds a structure with bit fields. Members: name, type, offset in bits, size in bits.
    pub fn bit_fields(&mut self, name: &str, size: u32, members: &[(&str, u32, u32, u32)]) -> u32 {
        let mut details = vec![];
        for (name, id, offset, bits) in members {
            details.extend([self.name(name), *id, offset | bits << 24]);
        }
        self.record(name, 4 | 1 << 7, members.len(), size, &details)
    }

    /// Adds an enumeration. Constants: name, value.
    pub fn enumeration(&mut self, name: &str, constants: &[(&str, i32)]) -> u32 {
        let mut details = vec![];
        for (name, value) in constants {
            details.extend([self.name(name), value.cast_unsigned()]);
        }
        self.record(name, 6 | 1 << 7, constants.len(), 4, &details)
    }

    /// Adds an enumeration of 64 bits, without signs. Constants: name, value.
    pub fn enumeration64(&mut self, name: &str, constants: &[(&str, u64)]) -> u32 {
        let mut details = vec![];
        for (name, value) in constants {
            details.extend([self.name(name), *value as u32, (*value >> 32) as u32]);
        }
        self.record(name, 19, constants.len(), 8, &details)
    }

    /// Adds the type of functions. Parameters: name, type.
    pub fn prototype(&mut self, parameters: &[(&str, u32)], returns: u32) -> u32 {
        let mut details = vec![];
        for (name, id) in parameters {
            details.extend([self.name(name), *id]);
        }
        self.record("", 13, parameters.len(), returns, &details)
    }

    /// Adds a function that returns nothing. Parameters: name, type.
    pub fn function(&mut self, name: &str, parameters: &[(&str, u32)]) -> u32 {
        self.function_returning(name, parameters, 0)
    }

    /// Adds a function. Parameters: name, type.
    pub fn function_returning(
        &mut self,
        name: &str,
        parameters: &[(&str, u32)],
        returns: u32,
    ) -> u32 {
        let prototype = self.prototype(parameters, returns);
        self.record(name, 12, 1, prototype, &[])
    }

    /// Returns the section.
    pub fn bytes(&self) -> Vec<u8> {
        let (types, names) = (self.types.len() as u32, self.names.len() as u32);
        let mut section = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, types, types, names] {
            section.extend(u32::to_le_bytes(word));
        }
        section.extend(&self.types);
        section.extend(&self.names);
        section
    }
}
