package resume

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/client/epoch"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

const (
	// tokenPrefix begins every token, so that people recognise one.
	tokenPrefix = "pecan1."
	TokenFormat = 1
	// listFormat is the format of tokens that have KeptLists. An earlier version would overlook these rows.
	listFormat = 2
	// maxToken limits the length that is parsed. A token of 65,536 streams is shorter.
	maxToken = 2 << 20
)

// NewToken returns the token of a point in a consumer's job.
func NewToken(c *epoch.Consumer, at *Point) *pecanv1.Token {
	return &pecanv1.Token{
		Format: TokenFormat, Fingerprint: c.Plan.GetFingerprint(), PlanHash: c.Plan.GetHash(), Mode: c.Options.GetMode(),
		NumStreams: c.Plan.GetNumStreams(), Seed: c.Options.GetSeed(), Position: at.Position, Passes: at.Passes, Elements: at.Elements, Group: c.Plan.GetGroup(),
	}
}

func Encode(t *pecanv1.Token) (string, error) {
	if t.GetGroup() > 0 {
		t = shortened(t)
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(t)
	if err != nil {
		return "", reason.New(reason.Internal, "encode a state: %w", err)
	}
	data = binary.LittleEndian.AppendUint32(data, crc32.Checksum(data, frame.Castagnoli))
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(data), nil
}

func Decode(text string) (*pecanv1.Token, error) {
	bad := func(why string) (*pecanv1.Token, error) {
		return nil, reason.New(reason.BadArgument, "load a state: %s; give a value that state_dict() returned", why)
	}
	if len(text) > maxToken {
		return bad(fmt.Sprintf("it has %d bytes, and at most %d are accepted", len(text), maxToken))
	}
	body, ok := strings.CutPrefix(text, tokenPrefix)
	if !ok {
		return bad("it does not begin with " + tokenPrefix)
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil || len(data) < 4 {
		return bad("it was truncated or changed")
	}
	data, sum := data[:len(data)-4], binary.LittleEndian.Uint32(data[len(data)-4:])
	if crc32.Checksum(data, frame.Castagnoli) != sum {
		return bad("it was truncated or changed")
	}
	t := new(pecanv1.Token)
	if err := proto.Unmarshal(data, t); err != nil {
		return bad("it was truncated or changed")
	}
	if t.GetFormat() != TokenFormat && t.GetFormat() != listFormat {
		return nil, reason.New(reason.BadArgument, "load a state: it has format %d, and this version of Pecan knows formats %d and %d; restore it with the version that saved it", t.GetFormat(), TokenFormat, listFormat)
	}
	if t.GetPosition() == nil {
		return bad("it has no position")
	}
	if err := expand(t.Position); err != nil {
		return bad(err.Error())
	}
	return t, nil
}
