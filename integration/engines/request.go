package engines

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
)

// LoadImage copies an image, such as [dockertest.Image], from the machine's engine to e. It does nothing if e already
// has the image.
func LoadImage(tb testing.TB, e *Engine, name string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := e.request(ctx, "GET", "/images/"+name+"/json", nil); err == nil {
		return
	}
	source := Default(tb)
	if name == dockertest.Image {
		dockertest.RequireImage(tb, source.Socket)
	}
	archive, err := source.open(ctx, "GET", "/images/"+name+"/get", nil)
	if err != nil {
		tb.Fatal(err)
	}
	defer archive.Close()
	if _, err := e.request(ctx, "POST", "/images/load?quiet=1", archive); err != nil {
		tb.Fatal(err)
	}
	if _, err := e.request(ctx, "GET", "/images/"+name+"/json", nil); err != nil {
		tb.Fatal(err)
	}
}

// Containers lists the ids of e's containers, in all states, that have a label. label is "key" or "key=value"; if it is
// empty, Containers lists all containers.
func (e *Engine) Containers(ctx context.Context, label string) ([]string, error) {
	path := "/containers/json?all=1"
	if label != "" {
		filter, _ := json.Marshal(map[string][]string{"label": {label}})
		path += "&filters=" + url.QueryEscape(string(filter))
	}
	data, err := e.request(ctx, "GET", path, nil)
	if err != nil {
		return nil, err
	}
	var found []struct{ ID string }
	if err := json.Unmarshal(data, &found); err != nil {
		return nil, err
	}
	ids := make([]string, len(found))
	for i, c := range found {
		ids[i] = c.ID
	}
	return ids, nil
}

// request sends one request and returns the whole answer. A status of 400 or higher is an error.
func (e *Engine) request(ctx context.Context, method, path string, body io.Reader) ([]byte, error) {
	answer, err := e.open(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	return io.ReadAll(answer)
}

func (e *Engine) open(ctx context.Context, method, path string, body io.Reader) (io.ReadCloser, error) {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", e.Socket)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/x-tar")
		if strings.HasSuffix(path, "/create") {
			req.Header.Set("Content-Type", "application/json")
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 400 {
		defer resp.Body.Close()
		message, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, message)
	}
	return resp.Body, nil
}

// SecondNetwork makes another network with the name and the labels of a network, on another subnet.
func (e *Engine) SecondNetwork(ctx context.Context, name, subnet, bridge string) error {
	data, err := e.request(ctx, "GET", "/networks/"+url.PathEscape(name), nil)
	if err != nil {
		return err
	}
	var of struct{ Labels map[string]string }
	if err := json.Unmarshal(data, &of); err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"Name": name, "CheckDuplicate": false, "Driver": "bridge",
		"Labels": of.Labels, "IPAM": map[string]any{"Config": []map[string]string{{"Subnet": subnet}}},
		"Options": map[string]string{"com.docker.network.bridge.name": bridge}})
	if err != nil {
		return err
	}
	_, err = e.request(ctx, "POST", "/networks/create", bytes.NewReader(body))
	return err
}
