// extensions/weather/index.ts
export function register(api: ExtensionApi): void {
  api.tools.register(
    {
      name: 'weather__get',
      description: '특정 도시의 현재 날씨 정보를 조회합니다',
      parameters: {
        type: 'object',
        properties: {
          city: {
            type: 'string',
            description: '도시 이름 (예: Seoul, Tokyo)',
          },
        },
        required: ['city'],
      },
    },
    async (ctx, input) => {
      const city = String(input.city);
      const response = await fetch(
        `${process.env.WEATHER_URL}/v1/current?city=${encodeURIComponent(city)}`
      );
      if (!response.ok) {
        throw new Error(`날씨 API 오류: ${response.status}`);
      }
      return await response.json();
    }
  );
}
