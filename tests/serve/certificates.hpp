// Keys and certificates for tests of TLS, made when the test runs: no private key is in the
// repository, and none expires.
#pragma once
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <string>

#include "flow/result.hpp"

struct Identity {
  std::shared_ptr<EVP_PKEY> key;
  std::shared_ptr<X509> certificate;
};

inline std::shared_ptr<EVP_PKEY> new_key(const char* type = "P-256") {
  std::string name = type;
  EVP_PKEY* key = nullptr;
  if (name.starts_with("RSA-"))
    key = EVP_RSA_gen(static_cast<unsigned int>(std::stoi(name.substr(4))));
  else if (name == "ED25519")
    key = EVP_PKEY_Q_keygen(nullptr, nullptr, type);
  else
    key = EVP_EC_gen(type);
  FLOW_CHECK(key != nullptr);
  return {key, EVP_PKEY_free};
}

struct CertificateOptions {
  std::string name = "localhost";
  const Identity* issuer = nullptr;  // null: signed by its own key
  bool is_authority = false;
  long from_s = -3600, until_s = 3600;  // from now
  const char* key_type = "P-256";
};

inline Identity new_identity(const CertificateOptions& options = {}) {
  Identity made;
  made.key = new_key(options.key_type);
  made.certificate = {X509_new(), X509_free};
  X509* certificate = made.certificate.get();
  const Identity& issuer = options.issuer != nullptr ? *options.issuer : made;
  static long serial = 0;
  X509_set_version(certificate, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate), options.from_s);
  X509_gmtime_adj(X509_getm_notAfter(certificate), options.until_s);
  X509_set_pubkey(certificate, made.key.get());
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(options.name.c_str()), -1, -1,
                             0);
  X509_set_issuer_name(certificate, X509_get_subject_name(issuer.certificate.get()));
  auto extend = [&](int id, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer.certificate.get(), certificate, nullptr, nullptr, 0);
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str());
    FLOW_CHECK(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1);
    X509_EXTENSION_free(extension);
  };
  extend(NID_basic_constraints, options.is_authority ? "critical,CA:TRUE" : "CA:FALSE");
  extend(NID_subject_key_identifier, "hash");
  if (!options.is_authority) extend(NID_subject_alt_name, "DNS:" + options.name + ",IP:127.0.0.1");
  const EVP_MD* digest = EVP_PKEY_is_a(issuer.key.get(), "ED25519") ? nullptr : EVP_sha256();
  FLOW_CHECK(X509_sign(certificate, issuer.key.get(), digest) > 0);
  return made;
}

template <typename Write>
std::string pem_by(Write write) {
  BIO* bio = BIO_new(BIO_s_mem());
  FLOW_CHECK(write(bio) == 1);
  char* bytes = nullptr;
  auto size = static_cast<size_t>(BIO_get_mem_data(bio, &bytes));
  std::string text(bytes, size);
  BIO_free(bio);
  return text;
}

inline std::string certificate_pem(const Identity& identity) {
  return pem_by([&](BIO* bio) { return PEM_write_bio_X509(bio, identity.certificate.get()); });
}

/// Encrypted if there is a password.
inline std::string key_pem(const Identity& identity, const char* password = nullptr) {
  const EVP_CIPHER* cipher = password != nullptr ? EVP_aes_256_cbc() : nullptr;
  return pem_by([&](BIO* bio) {
    return PEM_write_bio_PKCS8PrivateKey(bio, identity.key.get(), cipher, nullptr, 0, nullptr,
                                         const_cast<char*>(password));
  });
}
