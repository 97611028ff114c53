package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// router is one program under measurement.
type router struct {
	name  string
	ready string // path that answers 200 once it serves
	// argv may hold {port}, {admin} (a free port for metrics), {prefill} and
	// {decode} (URLs of the workers), {dir} (the router's own directory).
	argv []string
}

const (
	tandem   = "tandem"
	baseline = "nginx"
	// pdFlags is the command line that all SGLang-shaped routers share.
	pdFlags = "--pd-disaggregation --prefill {prefill} none --decode {decode} --host 127.0.0.1 --port {port}"
)

// builtIn lists tandem, nginx, and those peers whose programs are in peersDir.
func builtIn(peersDir string) []router {
	known := []router{
		{tandem, "/readiness", strings.Fields("{dir}/tandem " + pdFlags + " --policy round_robin --log-level warn")},
		{baseline, "/health", strings.Fields("nginx -p {dir} -c {dir}/nginx.conf -e {dir}/error.log")},
	}
	if peersDir == "" {
		return known
	}
	sgl, smg := filepath.Join(peersDir, "sgl", "bin"), filepath.Join(peersDir, "smg", "bin")
	for _, p := range []router{
		{"mini_lb", "/health", append([]string{sgl + "/python", "-m", "sglang_router.launch_router", "--mini-lb"}, strings.Fields(pdFlags)...)},
		{"gateway", "/readiness", append([]string{sgl + "/sglang-router", "launch"}, strings.Fields(pdFlags+" --prometheus-port {admin} --worker-startup-check-interval 1")...)},
		{"smg", "/readiness", append([]string{smg + "/smg", "launch"}, strings.Fields(pdFlags+" --prometheus-port {admin}")...)},
	} {
		if _, err := os.Stat(p.argv[0]); err == nil {
			known = append(known, p)
		}
	}
	return known
}

// parseRouter reads the -router flag.
func parseRouter(s string) (router, error) {
	f := strings.Fields(s)
	if len(f) < 3 || !strings.HasPrefix(f[1], "/") {
		return router{}, fmt.Errorf("%q is not \"name /ready-path command args…\"", s)
	}
	return router{name: f[0], ready: f[1], argv: f[2:]}, nil
}

// chooseRouters keeps those named in the comma-separated list, all if it is empty.
func chooseRouters(all []router, names string) ([]router, error) {
	if names == "" {
		return all, nil
	}
	var chosen []router
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(r router) bool { return r.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-routers: %q is neither built in, nor found in -peers, nor given by -router", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// fill replaces the marks in the router's command line.
func (r router) fill(marks map[string]string) []string {
	var pairs []string
	for k, v := range marks {
		pairs = append(pairs, "{"+k+"}", v)
	}
	rep := strings.NewReplacer(pairs...)
	argv := make([]string, len(r.argv))
	for i, a := range r.argv {
		argv[i] = rep.Replace(a)
	}
	return argv
}

// nginxConf is the floor the others are held against: the same bytes to two
// upstreams, no look into them, and the answer of one streamed back.
func nginxConf(port, prefill, decode string, files uint64, asRoot bool) string {
	user := ""
	if asRoot {
		user = "user root;" // else the workers cannot enter the private directory
	}
	location := func(upstream, uri string) string {
		return `
      proxy_pass http://` + upstream + uri + `;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;`
	}
	return fmt.Sprintf(`%s
daemon off;
worker_processes 2;
worker_rlimit_nofile %d;
pid nginx.pid;
events { worker_connections 16384; }
http {
  access_log off;
  client_max_body_size 0;
  client_body_buffer_size 2m;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  keepalive_requests 1000000000;
  upstream prefill { server %s; keepalive 512; keepalive_requests 1000000000; }
  upstream decode { server %s; keepalive 512; keepalive_requests 1000000000; }
  server {
    listen 127.0.0.1:%s backlog=4096;
    location / {
      mirror /mirror-to-prefill;%s
    }
    location = /mirror-to-prefill {
      internal;%s
    }
  }
}
`, user, files, prefill, decode, port, location("decode", ""), location("prefill", "$request_uri"))
}
