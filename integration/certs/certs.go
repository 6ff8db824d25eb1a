// Package certs makes certificate authorities and certificates for test programs. It writes them to files, as an
// operator does.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// CA is a certificate authority.
type CA struct {
	File string // path of the authority's certificate, in PEM
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA makes a certificate authority whose certificate is in dir/name.pem.
func NewCA(dir, name string) (*CA, error) {
	ca := &CA{File: filepath.Join(dir, name+".pem")}
	t := template(name, usualAge, 24*time.Hour)
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign
	der, key, err := sign(t, t, nil)
	if err != nil {
		return nil, err
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	ca.key = key
	return ca, replace(ca.File, "CERTIFICATE", der)
}

// Issue writes a certificate to dir/name.pem and its key to dir/name.key. It replaces both files, one after the other.
// The certificate expires after life; if life is negative, it has expired. Without hosts, it is for localhost and
// 127.0.0.1.
func (ca *CA) Issue(dir, name string, life time.Duration, hosts ...string) (cert, key string, err error) {
	return ca.IssueAged(dir, name, usualAge, life, hosts...)
}

// IssueAged is like [CA.Issue], for a certificate that has been valid for some time.
func (ca *CA) IssueAged(dir, name string, age, life time.Duration, hosts ...string) (cert, key string, err error) {
	cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	t := template(name, age, life)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	t.DNSNames = hosts
	if len(hosts) == 0 {
		t.DNSNames, t.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	der, private, err := sign(t, ca.cert, ca.key)
	if err != nil {
		return "", "", err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", err
	}
	if err := replace(cert, "CERTIFICATE", der); err != nil {
		return "", "", err
	}
	return cert, key, replace(key, "PRIVATE KEY", secret)
}

// Bundle writes the certificates of several authorities to one file.
func Bundle(file string, authorities ...*CA) error {
	var all [][]byte
	for _, ca := range authorities {
		all = append(all, ca.cert.Raw)
	}
	return replace(file, "CERTIFICATE", all...)
}

// Server returns the configuration of a server with a certificate. With authorities of clients, the server demands a
// certificate of one of them from each client.
func Server(cert, key string, clients ...*CA) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if len(clients) > 0 {
		c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	}
	for _, ca := range clients {
		c.ClientCAs.AddCert(ca.cert)
	}
	return c, nil
}

// usualAge is how long a new certificate has been valid already, because the clocks of machines differ.
const usualAge = 24 * time.Hour

func template(name string, age, life time.Duration) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-age), NotAfter: now.Add(life), KeyUsage: x509.KeyUsageDigitalSignature}
}

// sign makes a key and signs its certificate, with the new key itself if parentKey is nil.
func sign(t, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (der []byte, key *ecdsa.PrivateKey, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	if parentKey == nil {
		parentKey = key
	}
	der, err = x509.CreateCertificate(rand.Reader, t, parent, key.Public(), parentKey)
	return der, key, err
}

// replace replaces a file atomically. Only this user can read the file.
func replace(file, kind string, blocks ...[]byte) error {
	var text []byte
	for _, der := range blocks {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})...)
	}
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}
