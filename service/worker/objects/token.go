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
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	tokenAddress = "https://oauth2.googleapis.com/token"
	readScope    = "https://www.googleapis.com/auth/devstorage.read_only"
	// tokenMargin is how long before its end a token is replaced.
	tokenMargin = time.Minute
	// metadataTimeout is short, because outside of Google's cloud nobody answers.
	metadataTimeout = 2 * time.Second
)

// tokens gets the token that TensorFlow would use, and keeps it until it ends. It looks in the same order: the variable
// GOOGLE_AUTH_TOKEN_FOR_TESTING, the file of application default credentials, and the metadata server of a virtual machine.
// Without any of them, requests have no token, which public objects allow.
type tokens struct {
	http *http.Client

	mu    sync.Mutex
	token string
	until time.Time
}

func (t *tokens) get(ctx context.Context) (string, error) {
	if token := os.Getenv("GOOGLE_AUTH_TOKEN_FOR_TESTING"); token != "" {
		return token, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Now().Before(t.until) {
		return t.token, nil
	}
	token, lasts, err := t.fetch(ctx)
	if err != nil {
		return "", fmt.Errorf("get a token: %w", err)
	}
	t.token, t.until = token, time.Now().Add(lasts-tokenMargin)
	return token, nil
}

func (t *tokens) fetch(ctx context.Context) (token string, lasts time.Duration, err error) {
	file, named := credentialsFile()
	raw, err := os.ReadFile(file)
	if err == nil {
		return t.fromCredentials(ctx, raw)
	}
	if named || !errors.Is(err, os.ErrNotExist) {
		return "", 0, err
	}
	// Somebody may start the metadata server, or give credentials, later.
	const anonymous = 2 * tokenMargin
	if os.Getenv("NO_GCE_CHECK") == "true" {
		return "", anonymous, nil
	}
	if token, lasts, err = t.fromMetadata(ctx); err != nil {
		if ctx.Err() != nil {
			return "", 0, ctx.Err()
		}
		return "", anonymous, nil
	}
	return token, lasts, nil
}

// credentialsFile returns the file of application default credentials. named is true if the user names it.
func credentialsFile() (file string, named bool) {
	if file = os.Getenv("GOOGLE_APPLICATION_CREDENTIALS"); file != "" {
		return file, true
	}
	directory := os.Getenv("CLOUDSDK_CONFIG")
	if directory == "" {
		directory = filepath.Join(os.Getenv("HOME"), ".config", "gcloud")
	}
	return filepath.Join(directory, "application_default_credentials.json"), false
}

// credentials is the content of a file of application default credentials.
type credentials struct {
	Type         string
	ClientID     string `json:"client_id"`
	ClientSecret string `json:"client_secret"`
	RefreshToken string `json:"refresh_token"`
	ClientEmail  string `json:"client_email"`
	PrivateKeyID string `json:"private_key_id"`
	PrivateKey   string `json:"private_key"`
	TokenURI     string `json:"token_uri"`
}

func (t *tokens) fromCredentials(ctx context.Context, raw []byte) (string, time.Duration, error) {
	var c credentials
	if err := json.Unmarshal(raw, &c); err != nil {
		return "", 0, err
	}
	if c.TokenURI == "" {
		c.TokenURI = tokenAddress
	}
	var form url.Values
	switch c.Type {
	case "authorized_user":
		form = url.Values{"grant_type": {"refresh_token"}, "client_id": {c.ClientID}, "client_secret": {c.ClientSecret}, "refresh_token": {c.RefreshToken}}
	case "service_account":
		assertion, err := c.assertion(time.Now())
		if err != nil {
			return "", 0, err
		}
		form = url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:jwt-bearer"}, "assertion": {assertion}}
	default:
		return "", 0, fmt.Errorf("credentials of type %q are not supported; TensorFlow reads those of a user or of a service account", c.Type)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.TokenURI, strings.NewReader(form.Encode()))
	if err != nil {
		return "", 0, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return t.ask(request)
}

// assertion is a signed JSON web token (RFC 7523) that asks for read access.
func (c credentials) assertion(now time.Time) (string, error) {
	block, _ := pem.Decode([]byte(c.PrivateKey))
	if block == nil {
		return "", errors.New("the private key of the service account is not in PEM form")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return "", err
	}
	key, ok := parsed.(*rsa.PrivateKey)
	if !ok {
		return "", errors.New("the private key of the service account is not an RSA key")
	}
	encode := base64.RawURLEncoding.EncodeToString
	header, err := json.Marshal(map[string]string{"alg": "RS256", "typ": "JWT", "kid": c.PrivateKeyID})
	if err != nil {
		return "", err
	}
	claims, err := json.Marshal(map[string]any{
		"iss": c.ClientEmail, "scope": readScope, "aud": c.TokenURI, "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	})
	if err != nil {
		return "", err
	}
	signed := encode(header) + "." + encode(claims)
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		return "", err
	}
	return signed + "." + encode(signature), nil
}

// fromMetadata asks the metadata server for the token of the virtual machine.
func (t *tokens) fromMetadata(ctx context.Context) (string, time.Duration, error) {
	host := os.Getenv("GCE_METADATA_HOST")
	if host == "" {
		host = "metadata.google.internal"
	}
	ctx, stop := context.WithTimeout(ctx, metadataTimeout)
	defer stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/computeMetadata/v1/instance/service-accounts/default/token", nil)
	if err != nil {
		return "", 0, err
	}
	request.Header.Set("Metadata-Flavor", "Google")
	return t.ask(request)
}

func (t *tokens) ask(request *http.Request) (string, time.Duration, error) {
	response, body, err := send(t.http, request)
	if err != nil {
		return "", 0, err
	}
	if response.StatusCode != http.StatusOK {
		return "", 0, fmt.Errorf("%s answers %d", request.URL.Host, response.StatusCode)
	}
	var answer struct {
		Token string `json:"access_token"`
		Lasts int64  `json:"expires_in"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return "", 0, err
	}
	return answer.Token, time.Duration(answer.Lasts) * time.Second, nil
}
