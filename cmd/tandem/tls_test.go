package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// authority issues certificates into files of its directory.
type authority struct {
	t    *testing.T
	dir  string
	path string // of its own certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.path, _ = a.issue("ca")
	return a
}

// issue makes a certificate for 127.0.0.1, for both sides of a connection, and
// returns the files of it and its key. The first one is the authority's own.
func (a *authority) issue(name string) (certPath, keyPath string) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(a.t, err)
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature,
	}
	if a.cert == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		a.cert, a.key = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	require.NoError(a.t, err)
	if template == a.cert {
		a.cert, err = x509.ParseCertificate(der)
		require.NoError(a.t, err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	return a.file(name+".pem", "CERTIFICATE", der), a.file(name+"-key.pem", "PRIVATE KEY", secret)
}

func (a *authority) file(name, kind string, der []byte) string {
	path := filepath.Join(a.dir, name)
	require.NoError(a.t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

// pool trusts the authority.
func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// engine is an HTTPS server that asks for a certificate of the authority.
func (a *authority) engine(h http.HandlerFunc) *httptest.Server {
	a.t.Helper()
	cert, err := tls.LoadX509KeyPair(a.issue("engine"))
	require.NoError(a.t, err)
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: a.pool()}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are meant
	s.StartTLS()
	a.t.Cleanup(s.Close)
	return s
}

func TestFilesOfTLSAreReadBeforeListening(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.issue("server")
	other, otherKey := a.issue("other")
	broken := filepath.Join(a.dir, "broken")
	require.NoError(t, os.WriteFile(broken, []byte("no PEM, s3cret"), 0o600))
	gone := filepath.Join(a.dir, "gone")

	cfg := parseOK(t, onePair+"--tls-cert-path "+cert+" --tls-key-path "+key)
	assert.NotNil(t, cfg.clientTLS())
	assert.Nil(t, cfg.workerTLS())
	cfg = parseOK(t, onePair+"--ca-cert-paths "+a.path+" "+cert+" --client-cert-path "+other+" --client-key-path "+otherKey)
	assert.Nil(t, cfg.clientTLS())
	assert.NotNil(t, cfg.workerTLS())
	cfg = parseOK(t, onePair)
	assert.Nil(t, cfg.clientTLS())
	assert.Nil(t, cfg.workerTLS())

	f := func(line string, want ...string) {
		t.Helper()
		_, err := parse(t, onePair+line)
		require.Error(t, err, line)
		for _, text := range want {
			assert.Contains(t, err.Error(), text)
		}
		assert.NotContains(t, err.Error(), "s3cret")
		assert.NotContains(t, err.Error(), "\n", "one mistake")
	}
	for _, side := range []string{"tls", "client"} {
		certFlag, keyFlag := "--"+side+"-cert-path", "--"+side+"-key-path"
		f(certFlag+" "+cert, certFlag+": "+keyFlag+" is needed with it")
		f(keyFlag+" "+key, keyFlag+": "+certFlag+" is needed with it")
		f(certFlag+" "+gone+" "+keyFlag+" "+key, certFlag+` "`+gone+`" with `+keyFlag+` "`+key+`": open `+gone+": no such file or directory")
		f(certFlag+" "+cert+" "+keyFlag+" "+gone, "open "+gone+": no such file or directory")
		f(certFlag+" "+cert+" "+keyFlag+" "+a.dir, a.dir+": is a directory")
		f(certFlag+" "+cert+" "+keyFlag+" "+otherKey, "private key does not match public key")
		f(certFlag+" "+broken+" "+keyFlag+" "+key, "failed to find any PEM data in certificate input")
		f(certFlag+" "+cert+" "+keyFlag+" "+broken, "failed to find any PEM data in key input")
	}
	f("--ca-cert-paths "+gone, `--ca-cert-paths "`+gone+`": open `+gone+": no such file or directory")
	f("--ca-cert-paths "+a.path+" "+broken, `--ca-cert-paths "`+broken+`": it holds no certificate in PEM`)
	f("--ca-cert-paths "+key, `--ca-cert-paths "`+key+`": it holds no certificate in PEM`)
	f("--tls-cert-path=", `--tls-cert-path "": want a file`)
}

func TestACertificateIsReadAgainWhenItsFilesChange(t *testing.T) {
	a := newAuthority(t)
	certPath, keyPath := a.issue("server")
	synctest.Test(t, func(t *testing.T) {
		pair, err := loadKeyPair(certPath, keyPath)
		require.NoError(t, err)
		var out bytes.Buffer
		(&config{serverCert: pair}).logTo(zerolog.New(&out))
		first := pair.current()
		assert.Same(t, first, pair.current())

		a.issue("server")
		assert.Same(t, first, pair.current(), "looked at once a second at most")
		time.Sleep(lookEvery)
		second := pair.current()
		assert.NotEqual(t, first.Certificate, second.Certificate)
		assert.Equal(t, 1, strings.Count(out.String(), "the certificate has changed"))

		require.NoError(t, os.WriteFile(certPath, []byte("half of it"), 0o600))
		for range 3 {
			time.Sleep(lookEvery)
			assert.Same(t, second, pair.current(), "the old one stays")
		}
		assert.Equal(t, 1, strings.Count(out.String(), "cannot be used"), "told once")
		require.NoError(t, os.Remove(certPath))
		time.Sleep(lookEvery)
		assert.Same(t, second, pair.current())

		a.issue("server")
		time.Sleep(lookEvery)
		assert.NotEqual(t, second.Certificate, pair.current().Certificate, "it is taken up again")
		assert.NotContains(t, out.String(), "PRIVATE")
	})
}

func TestWorkersOverTLS(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	cert, key := a.issue("router")
	strange, strangeKey := stranger.issue("router")
	engine := a.engine(func(w http.ResponseWriter, req *http.Request) {
		assert.Equal(t, "router", req.TLS.PeerCertificates[0].Subject.CommonName)
		assert.Equal(t, 1, req.ProtoMajor)
	})
	f := func(reached bool, flags, want string) {
		t.Helper()
		cfg := parseOK(t, onePair+flags)
		for _, keep := range []bool{true, false} {
			rt := cfg.transport(keep)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, engine.URL, http.NoBody)
			require.NoError(t, err)
			resp, err := rt.RoundTrip(req)
			if reached {
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
			} else {
				assert.ErrorContains(t, err, want, flags)
			}
			rt.CloseIdleConnections()
		}
	}
	shown := " --client-cert-path " + cert + " --client-key-path " + key
	f(true, "--ca-cert-paths "+a.path+shown, "")
	f(true, "--ca-cert-paths "+stranger.path+" "+a.path+shown, "")
	f(false, shown, "certificate signed by unknown authority")
	f(false, "--ca-cert-paths "+stranger.path+shown, "certificate signed by unknown authority")
	f(false, "--ca-cert-paths "+a.path, "") // nothing to show
	f(false, "--ca-cert-paths "+a.path+" --client-cert-path "+strange+" --client-key-path "+strangeKey, "")
}
