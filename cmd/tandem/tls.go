package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/tandem-pd/tandem/pd"
)

// lookEvery is how often at most the files of a certificate are looked at.
const lookEvery = time.Second

// keyPair is a certificate with its key. When their files change they are read
// again, at the next handshake; what cannot be used is told once, and the pair
// that there was goes on.
type keyPair struct {
	certPath, keyPath string
	log               zerolog.Logger

	mu     sync.Mutex
	looked time.Time
	seen   [2]fileState // as last tried
	cert   *tls.Certificate
}

// fileState tells one content of a file from the next; zero is no file.
type fileState struct{ size, changed int64 }

func loadKeyPair(certPath, keyPath string) (*keyPair, error) {
	p := &keyPair{certPath: certPath, keyPath: keyPath}
	p.seen = p.states() // first: a change from here on is another one
	cert, err := tls.LoadX509KeyPair(certPath, keyPath)
	if err != nil {
		return nil, err
	}
	p.cert = &cert
	return p, nil
}

// current is the certificate to show.
func (p *keyPair) current() *tls.Certificate {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.looked) >= lookEvery {
		p.looked = now
		p.look()
	}
	return p.cert
}

func (p *keyPair) look() {
	states := p.states()
	if states == p.seen {
		return
	}
	p.seen = states
	cert, err := tls.LoadX509KeyPair(p.certPath, p.keyPath)
	if err != nil {
		p.log.Warn().Str("cert", p.certPath).Err(err).Msg("the new certificate cannot be used; the old one stays")
		return
	}
	p.cert = &cert
	p.log.Info().Str("cert", p.certPath).Msg("the certificate has changed")
}

func (p *keyPair) states() (s [2]fileState) {
	for i, path := range []string{p.certPath, p.keyPath} {
		if info, err := os.Stat(path); err == nil {
			s[i] = fileState{info.Size(), info.ModTime().UnixNano()}
		}
	}
	return s
}

// logTo has changes of certificates logged. It comes before the first handshake.
func (c *config) logTo(log zerolog.Logger) {
	for _, p := range []*keyPair{c.serverCert, c.clientCert} {
		if p != nil {
			p.log = log
		}
	}
}

// clientTLS is TLS towards clients; nil serves without.
func (c *config) clientTLS() *tls.Config {
	if c.serverCert == nil {
		return nil
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.serverCert.current(), nil },
	}
}

// workerTLS is TLS towards workers whose URL is https; nil is what the system
// trusts, and no certificate of our own.
func (c *config) workerTLS() *tls.Config {
	if c.clientCert == nil && c.roots == nil {
		return nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.roots}
	if c.clientCert != nil {
		out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.clientCert.current(), nil }
	}
	return out
}

// transport makes calls to workers.
func (c *config) transport(keep bool) *http.Transport {
	t := pd.NewTransport(c.connect, keep)
	t.TLSClientConfig = c.workerTLS()
	return t
}

// tlsFiles are the files that the command line names, all of them PEM.
type tlsFiles struct {
	cert, key             string // shown to clients
	clientCert, clientKey string // shown to workers
	roots                 []string
}

func (l *commandLine) addTLS(add addFlag) {
	f := &l.files
	add("tls-cert-path", fileValue(&f.cert), "PEM file of the certificate to serve HTTPS with; read again when it changes")
	add("tls-key-path", fileValue(&f.key), "PEM file of its key")
	add("ca-cert-paths", wordsValue(&f.roots), "PEM files of certificates to trust in workers, beside the system's")
	add("client-cert-path", fileValue(&f.clientCert), "PEM file of the certificate to show to workers; read again when it changes")
	add("client-key-path", fileValue(&f.clientKey), "PEM file of its key")
}

// checkTLS reads the files.
func (l *commandLine) checkTLS() {
	f := &l.files
	l.cfg.serverCert = l.keyPair("tls-cert-path", f.cert, "tls-key-path", f.key)
	l.cfg.clientCert = l.keyPair("client-cert-path", f.clientCert, "client-key-path", f.clientKey)
	if len(f.roots) == 0 {
		return
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		l.bad.add("--ca-cert-paths: the system's certificates cannot be read: %v", err)
		return
	}
	for _, path := range f.roots {
		pem, err := os.ReadFile(path)
		if err == nil && !roots.AppendCertsFromPEM(pem) {
			err = errors.New("it holds no certificate in PEM")
		}
		if err != nil {
			l.bad.add("--ca-cert-paths %q: %v", path, err)
		}
	}
	l.cfg.roots = roots
}

// keyPair reads a pair of files; nil when none is named.
func (l *commandLine) keyPair(certFlag, cert, keyFlag, key string) *keyPair {
	switch {
	case cert == "" && key == "":
		return nil
	case key == "":
		l.bad.add("--%s: --%s is needed with it", certFlag, keyFlag)
		return nil
	case cert == "":
		l.bad.add("--%s: --%s is needed with it", keyFlag, certFlag)
		return nil
	}
	pair, err := loadKeyPair(cert, key)
	if err != nil {
		l.bad.add("--%s %q with --%s %q: %v", certFlag, cert, keyFlag, key, err)
	}
	return pair
}

// fileValue is the name of a file.
func fileValue(dst *string) *flagValue {
	return &flagValue{typ: "file", parse: func(text string) error {
		if text == "" {
			return errors.New("want a file")
		}
		*dst = text
		return nil
	}}
}
