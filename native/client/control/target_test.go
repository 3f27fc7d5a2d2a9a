package control

import (
	"strings"
	"testing"

	"github.com/pecan-ml/pecan/proto/reason"
)

func TestTargetsAreParsedOrRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"host:5050":         "dns:///host:5050",
		"pecan://host:5050": "dns:///host:5050",
		"pecan://host:1/":   "dns:///host:1",
		"[::1]:80":          "dns:///[::1]:80",
		"10.0.0.1:65535":    "dns:///10.0.0.1:65535",
		"unix:@name":        "unix-abstract:name",
		"":                  "", "host": "", ":80": "", "host:0": "", "host:65536": "", "host:http": "", "grpc://host:80": "", "pecan://": "", "unix:": "", "unix:@": "",
		"[fe80::1%eth0]:80": "dns:///[fe80::1%25eth0]:80", "lo\x00cal:80": "", "lo\x7f:80": "",
		"unix:/tmp/socket": "", "a b:80": "", "user@host:80": "", "host:80/path": "", "pecan://host:80/path": "", "host:80:90": "", "dns:///host:80": "",
	} {
		got, err := ParseTarget(text)
		if (err != nil) != (want == "") || got.dial != want {
			t.Errorf("%q: %q, %v; want %q", text, got.dial, err, want)
		}
		if err != nil && (!reason.Is(err, reason.BadArgument) || !strings.Contains(err.Error(), "host:port")) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
