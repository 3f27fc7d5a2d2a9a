package objects

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	scheme     = "gs://"
	apiAddress = "https://www.googleapis.com/storage/v1/b/"
	// requestTimeout bounds a request, and attempts is how often one is sent that fails for a while. The wait before the next
	// attempt is four times the one before.
	requestTimeout = 10 * time.Second
	attempts       = 4
	firstWait      = 100 * time.Millisecond
	// mostMetadata bounds the answer to a request.
	mostMetadata = 1 << 20
	// remembered is for how long TensorFlow remembers the sizes of objects, unless GCS_STAT_CACHE_MAX_AGE says another number of
	// seconds. settled is added to it, because the store's clock gives whole seconds.
	remembered = 5 * time.Second
	settled    = 2 * time.Second
)

// Version is the state of an object. The store gives each new content another generation.
type Version struct {
	Size       int64
	Updated    time.Time
	Generation string
}

// String is equal for equal versions only.
func (v Version) String() string {
	return fmt.Sprintf("%d %d %s", v.Size, v.Updated.UnixNano(), v.Generation)
}

// Names reports whether a name is the URL of an object that has versions.
func Names(name string) bool {
	_, _, ok := split(name)
	return ok
}

// split returns the bucket and the name of an object. A name that ends in a slash belongs to a folder.
func split(name string) (bucket, object string, ok bool) {
	path, ok := strings.CutPrefix(name, scheme)
	if !ok {
		return "", "", false
	}
	bucket, object, _ = strings.Cut(path, "/")
	return bucket, object, bucket != "" && object != "" && !strings.HasSuffix(object, "/")
}

// client has the connections to the store.
type client struct {
	http   *http.Client
	tokens tokens
}

// shared is the client of this process. Its connections are kept between requests.
var shared = sync.OnceValues(newClient)

// newClient makes a client. CURL_CA_BUNDLE and https_proxy apply as in TensorFlow.
func newClient() (*client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 32
	if file := os.Getenv("CURL_CA_BUNDLE"); file != "" {
		certificates, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("CURL_CA_BUNDLE: %w", err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(certificates)
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	c := &client{http: &http.Client{Transport: transport, Timeout: requestTimeout}}
	c.tokens.http = c.http
	return c, nil
}

// Stat returns the version of an object. found is false if the object does not exist, or if no object can have the name.
// The version of an object that has just changed is not known. TensorFlow remembers the size of the earlier object for some
// seconds, and may read as many bytes of the new one.
func Stat(ctx context.Context, name string) (v Version, found bool, err error) {
	c, err := shared()
	if err != nil {
		return v, false, err
	}
	return c.stat(ctx, name)
}

func (c *client) stat(ctx context.Context, name string) (v Version, found bool, err error) {
	bucket, object, ok := split(name)
	if !ok {
		return v, false, nil
	}
	address := apiAddress + url.PathEscape(bucket) + "/o/" + url.PathEscape(object) + "?fields=size,generation,updated"
	wait := firstWait
	for attempt := 1; ; attempt++ {
		v, found, err = c.ask(ctx, address)
		if passing := (*passingError)(nil); !errors.As(err, &passing) || attempt == attempts {
			break
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return v, false, ctx.Err()
		}
		wait *= 4
	}
	if err != nil {
		return v, false, fmt.Errorf("ask for the version of %s: %w", name, err)
	}
	return v, found, nil
}

// memory returns for how long TensorFlow remembers the size of an object.
func memory() time.Duration {
	if seconds, err := strconv.ParseUint(os.Getenv("GCS_STAT_CACHE_MAX_AGE"), 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	return remembered
}

// passingError is a failure after which the same request may succeed.
type passingError struct{ error }

// ask requests the metadata of an object. It fails if the object changed so recently that TensorFlow may remember an
// earlier size.
func (c *client) ask(ctx context.Context, address string) (v Version, found bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return v, false, err
	}
	token, err := c.tokens.get(ctx)
	if err != nil {
		return v, false, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answered, body, err := send(c.http, request)
	switch {
	case err != nil:
		return v, false, err
	case answered.StatusCode == http.StatusNotFound:
		return v, false, nil
	case answered.StatusCode != http.StatusOK:
		return v, false, fmt.Errorf("the store answers %d", answered.StatusCode)
	}
	var answer struct {
		Size, Generation string
		Updated          time.Time
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return v, false, err
	}
	size, err := strconv.ParseInt(answer.Size, 10, 64)
	if err != nil || answer.Generation == "" {
		return v, false, errors.New("the answer of the store has no size or no generation")
	}
	now, err := http.ParseTime(answered.Header.Get("Date"))
	if err != nil {
		return v, false, fmt.Errorf("the answer of the store has no date: %w", err)
	}
	if age, least := now.Sub(answer.Updated), memory()+settled; age < least {
		return v, false, fmt.Errorf("it changed %v ago, and TensorFlow may remember its earlier size for %v", age, least)
	}
	return Version{Size: size, Updated: answer.Updated, Generation: answer.Generation}, true, nil
}

// send sends a request and reads its answer. Answers that promise nothing about the next one are errors.
func send(c *http.Client, request *http.Request) (response *http.Response, body []byte, err error) {
	response, err = c.Do(request)
	if err != nil {
		return nil, nil, &passingError{err}
	}
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, mostMetadata))
	switch {
	case err != nil:
		return nil, nil, &passingError{err}
	case response.StatusCode == http.StatusTooManyRequests || response.StatusCode >= http.StatusInternalServerError:
		return nil, nil, &passingError{fmt.Errorf("the server answers %d", response.StatusCode)}
	}
	return response, body, nil
}
