"""What shop.py does, against a server. `python remote.py` asks the one in NEXTSLOT_URL, else that of this machine."""

from nextslot import Client


def main() -> None:
    order = {"item": "tea", "count": 2}
    with Client() as client:
        charged = client.submit("charge", {"order": order})
        shipped = client.submit("ship", {"order": order}, depends_on=[charged])
        print(client.wait(shipped, timeout=60).result)
        print(client.wait(charged).result)
        print(client.run_direct("report", {"day": "2026-11-18"}).result)
        for one in client.schedules.list():
            print(one.name, one.cron_expression, one.timezone)


if __name__ == "__main__":
    main()
