package objects

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// redirected sends all requests to one server, whatever their host is.
type redirected struct{ to *url.URL }

func (r redirected) RoundTrip(request *http.Request) (*http.Response, error) {
	sent := request.Clone(request.Context())
	sent.URL.Scheme, sent.URL.Host = r.to.Scheme, r.to.Host
	return http.DefaultTransport.RoundTrip(sent)
}

// served makes a client of a server. Credentials of this host do not count.
func served(t *testing.T, handler http.HandlerFunc) *client {
	t.Helper()
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
	t.Setenv("CLOUDSDK_CONFIG", t.TempDir())
	t.Setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "")
	t.Setenv("NO_GCE_CHECK", "true")
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	to, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{http: &http.Client{Transport: redirected{to}}}
	c.tokens.http = c.http
	return c
}

const metadata = `{"size": "12", "generation": "1700000000000001", "updated": "2026-01-02T03:04:05.678Z"}`

func TestTheVersionOfAnObjectIsReadFromItsStore(t *testing.T) {
	requests := 0
	c := served(t, func(w http.ResponseWriter, r *http.Request) {
		requests++
		if want := "/storage/v1/b/bucket/o/folder%2Fa%20b?fields=size,generation,updated"; r.URL.String() != want || r.Header.Get("Authorization") != "" {
			t.Errorf("%s %v, want %s", r.URL, r.Header, want)
		}
		// The first answers say that the store is busy.
		if requests < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, metadata)
	})
	want := Version{Size: 12, Generation: "1700000000000001", Updated: time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)}
	if v, found, err := c.stat(t.Context(), "gs://bucket/folder/a b"); v != want || !found || err != nil || requests != 3 {
		t.Errorf("%v %v %v after %d requests, want %v", v, found, err, requests, want)
	}
}

func TestAnObjectThatIsNotThereHasNoVersion(t *testing.T) {
	c := served(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	for _, name := range []string{"gs://bucket/gone", "gs://bucket/folder/", "gs://bucket", "gs://", "/data/file", "s3://bucket/a"} {
		if v, found, err := c.stat(t.Context(), name); found || err != nil {
			t.Errorf("%s: %v %v", name, v, err)
		}
	}
}

func TestAVersionThatIsNotKnownIsAnError(t *testing.T) {
	for what, answer := range map[string]http.HandlerFunc{
		"forbidden": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"no JSON":   func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
		"just changed": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"size": "12", "generation": "1", "updated": "%s"}`, time.Now().Add(-5*time.Second).Format(time.RFC3339))
		},
		"no date": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Date"] = nil
			fmt.Fprint(w, metadata)
		},
		"no generation": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"size": "12"}`) },
	} {
		c := served(t, answer)
		if v, found, err := c.stat(t.Context(), "gs://bucket/a"); found || err == nil || !strings.Contains(err.Error(), "gs://bucket/a") {
			t.Errorf("%s: %v %v %v", what, v, found, err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	c := served(t, func(w http.ResponseWriter, _ *http.Request) {
		stop()
		w.WriteHeader(http.StatusTooManyRequests)
	})
	if _, _, err := c.stat(ctx, "gs://bucket/a"); err == nil {
		t.Error("a run that has ended waits for a busy store")
	}
}

// credentialsOf writes a file of credentials, and names it to the client.
func credentialsOf(t *testing.T, content map[string]string) {
	t.Helper()
	raw, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "credentials.json")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
}

// granting answers requests for tokens after a check, and requires the token of all others.
func granting(t *testing.T, path string, check func(*http.Request), granted *int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == path {
			*granted++
			check(r)
			fmt.Fprint(w, `{"access_token": "secret", "expires_in": 3600}`)
			return
		}
		if got := r.Header.Get("Authorization"); got != "Bearer secret" {
			t.Errorf("%s: %q", r.URL, got)
		}
		fmt.Fprint(w, metadata)
	}
}

func askTwice(t *testing.T, c *client, granted *int) {
	t.Helper()
	for range 2 {
		if _, found, err := c.stat(t.Context(), "gs://bucket/a"); !found || err != nil {
			t.Fatal(found, err)
		}
	}
	if *granted != 1 {
		t.Errorf("%d tokens for two requests", *granted)
	}
}

func TestTheTokenOfAUser(t *testing.T) {
	granted := 0
	c := served(t, granting(t, "/token", func(r *http.Request) {
		if r.PostFormValue("grant_type") != "refresh_token" || r.PostFormValue("refresh_token") != "refresh" || r.PostFormValue("client_id") != "id" {
			t.Errorf("%v", r.PostForm)
		}
	}, &granted))
	credentialsOf(t, map[string]string{"type": "authorized_user", "client_id": "id", "client_secret": "s", "refresh_token": "refresh"})
	askTwice(t, c, &granted)
}

func TestTheTokenOfAServiceAccount(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	granted := 0
	c := served(t, granting(t, "/grant", func(r *http.Request) {
		parts := strings.Split(r.PostFormValue("assertion"), ".")
		if len(parts) != 3 {
			t.Errorf("%v", parts)
			return
		}
		claims, _ := base64.RawURLEncoding.DecodeString(parts[1])
		signature, _ := base64.RawURLEncoding.DecodeString(parts[2])
		sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
		if err := rsa.VerifyPKCS1v15(&key.PublicKey, crypto.SHA256, sum[:], signature); err != nil {
			t.Error(err)
		}
		for _, want := range []string{`"iss":"worker@project"`, readScope, `"aud":"https://tokens.test/grant"`} {
			if !strings.Contains(string(claims), want) {
				t.Errorf("%s has no %s", claims, want)
			}
		}
	}, &granted))
	credentialsOf(t, map[string]string{
		"type": "service_account", "client_email": "worker@project", "private_key_id": "1", "token_uri": "https://tokens.test/grant",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})),
	})
	askTwice(t, c, &granted)
}

func TestTheTokenOfAVirtualMachine(t *testing.T) {
	granted := 0
	c := served(t, granting(t, "/computeMetadata/v1/instance/service-accounts/default/token", func(r *http.Request) {
		if r.Header.Get("Metadata-Flavor") != "Google" {
			t.Errorf("%v", r.Header)
		}
	}, &granted))
	t.Setenv("NO_GCE_CHECK", "")
	askTwice(t, c, &granted)
}

func TestCredentialsThatCannotBeUsedAreAnError(t *testing.T) {
	c := served(t, func(http.ResponseWriter, *http.Request) { t.Error("a request without a token") })
	for what, content := range map[string]map[string]string{
		"of another type": {"type": "external_account"}, "without a key": {"type": "service_account"},
	} {
		credentialsOf(t, content)
		if _, _, err := c.stat(t.Context(), "gs://bucket/a"); err == nil {
			t.Errorf("credentials %s are used", what)
		}
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(t.TempDir(), "none"))
	if _, _, err := c.stat(t.Context(), "gs://bucket/a"); err == nil {
		t.Error("a file of credentials that is not there is left out")
	}
}
