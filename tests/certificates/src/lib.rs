//! Certificates for tests and measurements, signed by an authority of their own.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, Error, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, date_time_ymd,
};

/// An authority that signs certificates.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate, in PEM.
    pub pem: String,
}

/// A certificate and its key, in PEM.
#[derive(Debug)]
pub struct Signed {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl Authority {
    /// Makes an authority with a key of its own.
    ///
    /// # Errors
    /// There is no key.
    pub fn new() -> Result<Self, Error> {
        let key = KeyPair::generate()?;
        let mut wanted = common_name("authority")?;
        wanted.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = wanted.self_signed(&key)?.pem();
        let issuer = Issuer::new(wanted, key);
        Ok(Self { issuer, pem })
    }

    /// The certificate of a server on this machine: `localhost`, 127.0.0.1.
    ///
    /// # Errors
    /// There is no key.
    pub fn server(&self) -> Result<Signed, Error> {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let wanted = CertificateParams::new(names)?;
        self.sign(wanted, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// The certificate of the client with this common name.
    ///
    /// # Errors
    /// There is no key, or the name has characters that no name has.
    pub fn client(&self, name: &str) -> Result<Signed, Error> {
        self.sign(common_name(name)?, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// As [`Self::client`], but the certificate was valid only in 2020.
    ///
    /// # Errors
    /// Those of [`Self::client`].
    pub fn expired(&self, name: &str) -> Result<Signed, Error> {
        let mut wanted = common_name(name)?;
        wanted.not_before = date_time_ymd(2020, 1, 1);
        wanted.not_after = date_time_ymd(2021, 1, 1);
        self.sign(wanted, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        mut wanted: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Signed, Error> {
        wanted.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        Ok(Signed {
            certificate: wanted.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

fn common_name(name: &str) -> Result<CertificateParams, Error> {
    let mut wanted = CertificateParams::new(Vec::new())?;
    wanted.distinguished_name.push(DnType::CommonName, name);
    Ok(wanted)
}
