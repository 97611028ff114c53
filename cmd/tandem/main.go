// Command tandem is a router for SGLang engines, prefill/decode pairs or whole ones.
//
// It takes the flags of SGLang's gateway, checks all of them before it listens,
// builds the router from the packages beside it and ends it in order. What a
// request goes through is none of its business: see package pd.
package main

import (
	"context"
	"os"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }
