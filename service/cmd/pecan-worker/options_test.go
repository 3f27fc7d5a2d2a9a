package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// An impossible value is refused at the start, by the name of the flag, before anything is tried.
func TestFlagsThatCannotBeRightAreRefused(t *testing.T) {
	const near = "2562047h"
	cases := map[string]struct {
		args []string
		want string
	}{
		"no dispatcher":            {nil, "--dispatcher is missing"},
		"an empty dispatcher":      {[]string{"--dispatcher="}, "--dispatcher is missing"},
		"a dispatcher's host":      {[]string{"--dispatcher=nope"}, `--dispatcher "nope": the port is missing`},
		"port 0":                   {[]string{"--dispatcher=h:0"}, `--dispatcher "h:0": port "0"`},
		"no host":                  {[]string{"--dispatcher=:0"}, `--dispatcher ":0": the host is missing`},
		"a URL":                    {[]string{"--dispatcher=http://h:1"}, "http:// is not a supported scheme"},
		"a listener's host":        {[]string{"--dispatcher=h:1", "--listen=h"}, `--listen "h": the port is missing`},
		"a listener's URL":         {[]string{"--dispatcher=h:1", "--listen=tcp://h:1"}, "tcp:// is not a supported scheme"},
		"a listener on a socket":   {[]string{"--dispatcher=h:1", "--listen=unix:@x"}, "--listen"},
		"port 0 for others":        {[]string{"--dispatcher=h:1", "--advertise=h:0"}, `--advertise "h:0"`},
		"every address for others": {[]string{"--dispatcher=h:1", "--advertise=0.0.0.0:5"}, "nobody can connect to 0.0.0.0"},
		"a URL for others":         {[]string{"--dispatcher=h:1", "--advertise=http://h:1"}, "--advertise"},
		"a timeout of nothing":     {[]string{"--dispatcher=h:1", "--dispatcher-timeout=0s"}, "--dispatcher-timeout 0s: must be at least 1ms"},
		"a timeout of 1 ns":        {[]string{"--dispatcher=h:1", "--dispatcher-timeout=1ns"}, "--dispatcher-timeout 1ns: must be at least 1ms"},
		"a timeout near 2^63":      {[]string{"--dispatcher=h:1", "--dispatcher-timeout=" + near}, "--dispatcher-timeout"},
		"a negative timeout":       {[]string{"--dispatcher=h:1", "--dispatcher-timeout=-1s"}, "--dispatcher-timeout"},
		"a window of 2^63":         {[]string{"--dispatcher=h:1", "--window-bytes=9223372036854775807"}, "--window-bytes"},
		"a window of nothing":      {[]string{"--dispatcher=h:1", "--window-bytes=0"}, "--window-bytes"},
		"negative shared memory":   {[]string{"--dispatcher=h:1", "--shared-memory-bytes=-1"}, "--shared-memory-bytes"},
		"shared memory of 2^63":    {[]string{"--dispatcher=h:1", "--shared-memory-bytes=9223372036854775807"}, "--shared-memory-bytes"},
		"no streams":               {[]string{"--dispatcher=h:1", "--max-streams=0"}, "--max-streams"},
		"2^40 streams":             {[]string{"--dispatcher=h:1", "--max-streams=1099511627776"}, "--max-streams"},
		"negative threads":         {[]string{"--dispatcher=h:1", "--threads=-1"}, "--threads"},
		"2^40 threads":             {[]string{"--dispatcher=h:1", "--threads=1099511627776"}, "--threads"},
		"a strange kind":           {[]string{"--dispatcher=h:1", "--kind=moon"}, "--kind"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := new(options)
			flags := pflag.NewFlagSet("pecan-worker", pflag.ContinueOnError)
			o.register(flags)
			err := flags.Parse(c.args)
			if err == nil {
				err = o.validate(flags.Args())
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestTheDispatcherFlagTakesEachFormOfAnAddress(t *testing.T) {
	for _, address := range []string{"h:5050", "pecan://h:5050", "unix:@p"} {
		o := new(options)
		flags := pflag.NewFlagSet("pecan-worker", pflag.ContinueOnError)
		o.register(flags)
		if err := flags.Parse([]string{"--dispatcher", address}); err != nil {
			t.Fatal(err)
		}
		if err := o.validate(nil); err != nil {
			t.Error(err)
		}
	}
}
