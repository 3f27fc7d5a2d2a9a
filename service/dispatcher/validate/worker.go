package validate

import (
	"net"
	"net/netip"
	"strconv"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Hello checks the form of a worker's first message.
func (c *Checker) Hello(m *pecanv1.WorkerHello) error {
	address := m.GetAddress()
	if err := First(
		c.Required("worker_id", address.GetWorkerId()), Text("host_id", address.GetHostId()),
		Text("tensorflow_version", m.GetTensorflowVersion()), Text("version", m.GetVersion()),
		Text("cluster_id", m.GetClusterId()), Text("trainer_id", m.GetTrainerId()),
	); err != nil {
		return err
	}
	switch {
	case m.MaxStreams < 1 || m.MaxStreams > maxSlots:
		return reason.New(reason.BadArgument, "max_streams %d: want 1 to %d", m.MaxStreams, maxSlots)
	case m.Cores < 0:
		return reason.New(reason.BadArgument, "cores %d: must not be negative", m.Cores)
	case m.Kind != "" && m.Kind != "local" && m.Kind != "remote":
		return reason.New(reason.BadArgument, "kind %.40q: want local or remote", m.Kind)
	case address.Tcp == "" && address.Unix == "":
		return reason.New(reason.BadArgument, "worker %s has no address for its readers", address.WorkerId)
	case address.Unix != "" && (address.Unix[0] != '@' || len(address.Unix) > 107):
		return reason.New(reason.BadArgument, "unix address %.120q: want the name of an abstract socket (@...), at most 107 bytes", address.Unix)
	case len(m.Held) > MaxListed:
		return reason.New(reason.BadArgument, "%d held streams; the limit is %d", len(m.Held), MaxListed)
	}
	for _, held := range m.Held {
		if held == nil || held.Id == nil {
			return reason.New(reason.BadArgument, "a held stream has no id")
		}
	}
	if address.Tcp == "" {
		return nil
	}
	return checkAdvertised(address.Tcp)
}

// checkAdvertised refuses addresses that no trainer can or should dial.
func checkAdvertised(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return reason.New(reason.BadArgument, "worker address %.200q: want HOST:PORT: %w", address, err)
	}
	if number, err := strconv.Atoi(port); err != nil || number < 1 || number > 65535 {
		return reason.New(reason.BadArgument, "worker address %.200q: the port must be 1 to 65535", address)
	}
	if host == "" || len(host) > 255 || strings.ContainsAny(host, " \t\r\n\x00/") {
		return reason.New(reason.BadArgument, "worker address %.200q: the host is missing or no host name", address)
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	switch {
	case ip.IsUnspecified():
		return reason.New(reason.BadArgument, "worker address %s cannot be dialled; set the worker's reachable address with --advertise HOST:PORT", address)
	case ip.IsMulticast(), ip.Is4() && ip.IsLinkLocalUnicast():
		return reason.New(reason.BadArgument, "worker address %s is a link-local or multicast address, which trainers do not dial", address)
	}
	return nil
}
