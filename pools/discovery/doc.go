// Package discovery finds workers in a file and in DNS. Both are a
// [registry.Source]: cmd/tandem makes them and the registry runs them. It calls
// no worker, and it never empties a pool because of something that it could not
// read: what it knew last goes on, and what is wrong is reported.
//
// # The file
//
// A [File] is YAML, of which JSON is a part, with the fields that the admin API
// takes, see [registry.Document], and one more:
//
//	workers:
//	  - url: http://10.0.0.1:30000
//	    worker_type: prefill
//	    bootstrap_port: 8998
//	    api_key_file: keys/prefill
//	    labels: {zone: a}
//	  - url: http://10.0.0.2:30000
//	    worker_type: decode
//
// The fields of a worker:
//
//	url                   http:// or https://, HOST:PORT; it is needed, and must
//	                      not be that of another worker
//	worker_type           prefill, decode or regular; regular if left out
//	bootstrap_port        where the bootstrap server of a prefill listens, 1 to
//	                      65535, or none; what the engine says, if left out
//	bootstrap_host        its host, if that is not the url's; with bootstrap_port
//	model_id              by which requests ask for it; what the engine says, if
//	                      left out
//	api_key               of the worker; the router's for workers, if left out
//	api_key_file          a file that holds it, instead of api_key; a path that is
//	                      not absolute starts at the workers' file
//	priority              a whole number; 50
//	cost                  a number; 1.0
//	labels                names with texts
//	disable_health_check  true for one that serves at all times, unasked
//
// A field that is not among these is an error, as is a text that is written as a
// number or as true. `workers: []` says that there are none; a file that is empty,
// or without workers, says nothing and is an error. Errors name the file, the
// entry from 0 and the field, or the line, and never show a key.
//
// The file is best replaced by renaming another to its name, as editors do, or by
// moving a symbolic link, as Kubernetes does with a ConfigMap. One that is written
// in place is taken when it has not changed from one look to the next.
//
// # DNS
//
// A [DNS] has a list of names for each role: hosts, whose every address is a
// worker at the port that is given with them, or SRV names (_service._proto.name),
// whose records bring the ports. Priorities and weights of records are not
// heeded: how work is spread is for the policies to say.
//
// Workers are their addresses, also those behind the hosts that SRV records name:
// a pod that came back under its old name at a new address is another worker, with
// nothing in its cache, and two names of one engine are one worker. An engine with
// an IPv4 and an IPv6 address under one name would be two: give it a name for each
// family, and Tandem one of them. With https, a worker's certificate must be good for
// its address.
package discovery
