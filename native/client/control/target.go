package control

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"unicode"

	"github.com/pecan-ml/pecan/proto/reason"
)

// target is a parsed service address.
type target struct {
	// shown is the address that the user gave, without the scheme.
	shown string
	// dial is the address in the form that grpc-go needs.
	dial string
}

func ParseTarget(text string) (target, error) {
	bad := func(why string) (target, error) {
		return target{}, reason.New(reason.BadArgument, "service %q: %s; give \"host:port\", \"pecan://host:port\" or \"unix:@name\"", text, why)
	}
	if name, ok := strings.CutPrefix(text, "unix:"); ok {
		if len(name) < 2 || name[0] != '@' || len(name) > 100 {
			return bad("an abstract Unix socket has a name of 1 to 99 characters after the @")
		}
		return target{shown: text, dial: "unix-abstract:" + name[1:]}, nil
	}
	address := text
	if scheme, rest, ok := strings.Cut(text, "://"); ok {
		if scheme != "pecan" {
			return bad(fmt.Sprintf("unknown scheme %q", scheme))
		}
		address = strings.TrimSuffix(rest, "/")
	}
	if address == "" {
		return bad("it is empty")
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return bad(err.Error())
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return bad(fmt.Sprintf("port %q is not a number from 1 to 65535", port))
	}
	if host == "" || strings.ContainsAny(host, "/?#@ ") || strings.ContainsFunc(host, unicode.IsControl) {
		return bad(fmt.Sprintf("%q is not a host", host))
	}
	// grpc-go parses a URL, where the % before an IPv6 zone is escaped.
	return target{shown: address, dial: "dns:///" + strings.ReplaceAll(address, "%", "%25")}, nil
}
